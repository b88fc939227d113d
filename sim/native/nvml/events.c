/* Events: lines of state/events, delivered when they are appended. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "library.h"

enum {
    EVENT_SBE = 0x1,
    EVENT_DBE = 0x2,
    EVENT_PSTATE = 0x4,
    EVENT_XID = 0x8,
    EVENT_CLOCK = 0x10,
    EVENT_NEWER = 0xFE00, /* ECC storm, DRAM retirement, poison, unavailable, recovery action */
    NEWER_EVENTS_SINCE_BRANCH = 575,
    WAIT_V3_SINCE_BRANCH = 615,
    LINE_MAX_LENGTH = 256,
};

struct event_set {
    struct event_set *next;
    int notify;   /* inotify descriptor on the state directory */
    off_t offset; /* of the next line to read */
    u64 types[MAX_GPUS];
    off_t since[MAX_GPUS]; /* earlier lines precede the registration of the GPU */
};

struct event {
    int gpu;
    u64 type, data;
    unsigned gi, ci;
};

/* Existing sets, so that an invalid pointer is an error and not a crash. */
static struct event_set *sets;

static int is_known(const struct event_set *set)
{
    for (const struct event_set *known = sets; known; known = known->next)
        if (known == set)
            return 1;
    return 0;
}

static void events_path(const struct sim_state *state, char *path)
{
    snprintf(path, PATH_MAX, "%s/state/events", sim_state_directory(state));
}

static off_t end_of_events(const struct sim_state *state)
{
    char path[PATH_MAX];
    struct stat now;
    events_path(state, path);
    return stat(path, &now) == 0 ? now.st_size : 0;
}

static int watch_state(const struct sim_state *state)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/state", sim_state_directory(state));
    int notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (notify >= 0 && inotify_add_watch(notify, path, IN_MODIFY | IN_CREATE | IN_MOVED_TO) < 0) {
        close(notify);
        return -1;
    }
    return notify;
}

NVML_API nvmlEventSetCreate(nvml_event_set *out)
{
    WITH_LIBRARY(state);
    NEED(out);
    int fault = (int)sim_number(state, 0, "fault.event_set");
    if (fault)
        return fault;
    struct event_set *set = calloc(1, sizeof *set);
    if (!set)
        return NVML_MEMORY;
    set->notify = watch_state(state);
    if (set->notify < 0) {
        free(set);
        return NVML_OPERATING_SYSTEM; /* usually fs.inotify.max_user_instances */
    }
    set->offset = end_of_events(state);
    set->next = sets;
    *out = sets = set;
    return NVML_SUCCESS;
}

NVML_API nvmlEventSetFree(nvml_event_set set)
{
    WITH_LIBRARY(state);
    for (struct event_set **link = &sets; *link; link = &(*link)->next)
        if (*link == set) {
            *link = set->next;
            close(set->notify);
            free(set);
            return NVML_SUCCESS;
        }
    return NVML_INVALID_ARGUMENT;
}

static u64 supported_types(const struct device *device)
{
    u64 types = EVENT_XID | EVENT_PSTATE | EVENT_CLOCK;
    if (gpu_has(device, "ecc.mode"))
        types |= EVENT_SBE | EVENT_DBE;
    if (driver_branch(device->state) >= NEWER_EVENTS_SINCE_BRANCH)
        types |= EVENT_NEWER;
    return types;
}

NVML_API nvmlDeviceGetSupportedEventTypes(nvml_device handle, u64 *types)
{
    WITH_GPU(handle, device);
    NEED(types);
    *types = supported_types(&device);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceRegisterEvents(nvml_device handle, u64 types, nvml_event_set set)
{
    WITH_GPU(handle, device);
    NEED(is_known(set));
    if (types & ~supported_types(&device))
        return NVML_NOT_SUPPORTED;
    if (!set->types[device.gpu])
        set->since[device.gpu] = end_of_events(device.state);
    set->types[device.gpu] |= types;
    return NVML_SUCCESS;
}

static unsigned parse_instance(const char *text)
{
    return strcmp(text, "-") == 0 ? NO_INSTANCE : (unsigned)strtoul(text, NULL, 0);
}

static int parse_event(const char *line, struct event *event)
{
    char type[32], data[32], gi[16] = "-", ci[16] = "-";
    if (sscanf(line, "%d %31s %31s %15s %15s", &event->gpu, type, data, gi, ci) < 3)
        return 0;
    event->type = strtoull(type, NULL, 0);
    event->data = strtoull(data, NULL, 0);
    event->gi = parse_instance(gi);
    event->ci = parse_instance(ci);
    return event->gpu >= 0 && event->gpu < MAX_GPUS;
}

/* Returns the next event that the set registered for, 0 if there is none yet. */
static int take_event(struct event_set *set, const struct sim_state *state, struct event *event)
{
    char path[PATH_MAX];
    events_path(state, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    char buffer[LINE_MAX_LENGTH];
    ssize_t got;
    int found = 0;
    while (!found && (got = pread(file, buffer, sizeof buffer - 1, set->offset)) > 0) {
        buffer[got] = '\0';
        char *end = strchr(buffer, '\n');
        if (!end)
            break; /* still being written */
        *end = '\0';
        off_t start = set->offset;
        set->offset += end + 1 - buffer;
        found = parse_event(buffer, event) && start >= set->since[event->gpu] &&
                (set->types[event->gpu] & event->type);
    }
    close(file);
    return found;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* Waits until the state directory changes. Returns 0 after a timeout. */
static int sleep_until_change(int notify, int64_t deadline)
{
    int64_t left = deadline - now_ms();
    if (left <= 0)
        return 0;
    struct pollfd wait = {.fd = notify, .events = POLLIN};
    int ready = poll(&wait, 1, left > INT_MAX ? INT_MAX : (int)left);
    char drained[4096];
    while (ready > 0 && read(notify, drained, sizeof drained) > 0)
        ;
    return 1;
}

static int wait_event(nvml_event_set set, unsigned timeout_ms, struct event *event)
{
    int64_t deadline = now_ms() + timeout_ms;
    for (;;) {
        library_hang("nvmlEventSetWait_v2", NO_GPU); /* a wait in progress hangs, too */
        if (!library_is_initialized())
            return NVML_UNINITIALIZED;
        NEED(is_known(set));
        struct sim_state *state = library_state();
        sim_state_refresh(state);
        int fault = (int)sim_number(state, 0, "fault.event_wait");
        if (fault)
            return fault;
        if (take_event(set, state, event))
            return NVML_SUCCESS;
        int notify = set->notify;
        library_pause();
        int more = sleep_until_change(notify, deadline);
        library_resume();
        if (!more)
            return NVML_TIMEOUT;
    }
}

NVML_API nvmlEventSetWait_v2(nvml_event_set set, struct event_data *out, unsigned timeout_ms)
{
    WITH_LIBRARY(state);
    NEED(out);
    struct event event;
    int status = wait_event(set, timeout_ms, &event);
    if (status == NVML_SUCCESS) {
        int nameless = (int)sim_number(library_state(), 0, "gpu.%d.events.nameless", event.gpu);
        *out = (struct event_data){nameless ? NULL : library_by_gpu(event.gpu), event.type,
                                   event.data, event.gi, event.ci};
    }
    return status;
}

/* The first version's structure ends before the instance ids. */
NVML_API nvmlEventSetWait(nvml_event_set set, struct event_data *out, unsigned timeout_ms)
{
    struct event_data data;
    NEED(out);
    int status = nvmlEventSetWait_v2(set, &data, timeout_ms);
    if (status == NVML_SUCCESS) {
        out->device = data.device;
        out->type = data.type;
        out->data = data.data;
    }
    return status;
}

NVML_API nvmlEventSetWait_v3(nvml_event_set set, struct event_wait_v3 *params)
{
    WITH_LIBRARY(state);
    NEED(params);
    if (driver_branch(state) < WAIT_V3_SINCE_BRANCH)
        return NVML_NOT_SUPPORTED;
    struct event event;
    unsigned timeout_ms = params->timeout_ms;
    int status = wait_event(set, timeout_ms, &event);
    if (status != NVML_SUCCESS)
        return status;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *params = (struct event_wait_v3){
        .timeout_ms = timeout_ms,
        .type = event.type,
        .data = event.data,
        .timestamp_us = (u64)now.tv_sec * 1000000ull + (u64)now.tv_nsec / 1000,
        .gi = event.gi,
        .ci = event.ci,
    };
    snprintf(params->uuid, sizeof params->uuid, "%s",
             sim_text(state, "", "gpu.%d.uuid", event.gpu));
    return NVML_SUCCESS;
}
