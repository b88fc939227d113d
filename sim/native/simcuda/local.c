#include "local.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"
#include "locate.h"

enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };

void local_open(struct local *local)
{
    char directory[PATH_MAX];
    memset(local, 0, sizeof *local);
    for (int i = 0; i < MAX_DEVICES; i++)
        local->held[i] = -1;
    if (sim_locate_node("/proc/self/exe", directory, sizeof directory) == 0)
        local->state = sim_state_open(directory);
}

void local_close(struct local *local, const struct device_list *devices)
{
    for (int i = 0; local->state && i < devices->count; i++)
        if (local->held[i] >= 0)
            sim_proc_remove(local->state, &local->procs[i], &local->held[i]);
    sim_state_close(local->state);
    local->state = NULL;
}

static bool is_usable(const struct sim_state *state, int gpu)
{
    return sim_number(state, 1, "gpu.%d.present", gpu) != 0 &&
           sim_number(state, 0, "gpu.%d.lost", gpu) == 0;
}

static void describe_gpu(const struct sim_state *state, int gpu, struct device *device)
{
    memset(device, 0, sizeof *device);
    device->index = gpu;
    device->minor = (int)sim_number(state, gpu, "gpu.%d.minor", gpu);
    device->mig = device->gi = -1;
    device->total_bytes = (uint64_t)sim_number(state, 0, "gpu.%d.memory.total", gpu);
    device->sms = (int)sim_number(state, 1, "gpu.%d.sms", gpu);
    device->limit_bytes = NO_LIMIT;
    snprintf(device->uuid, sizeof device->uuid, "%s", sim_text(state, "", "gpu.%d.uuid", gpu));
    snprintf(device->name, sizeof device->name, "%s", sim_text(state, "", "gpu.%d.name", gpu));
}

/* The MIG device with the number `mig` of a GPU in MIG mode. */
static void describe_mig(const struct sim_state *state, int gpu, int mig, struct device *device)
{
    describe_gpu(state, gpu, device);
    int profile = (int)sim_number(state, 0, "gpu.%d.mig.%d.profile", gpu, mig);
    const char *text = sim_text(state, "", "gpu.%d.mig.profile.%d", gpu, profile);
    unsigned long long mib = 0;
    /* id, slices, most, SMs, MiB, …, name */
    sscanf(text, "%*d %*d %*d %d %llu", &device->sms, &mib);
    const char *name = strrchr(text, ' ');
    size_t length = strlen(device->name);
    snprintf(device->name + length, sizeof device->name - length, " MIG%s", name ? name : "");
    snprintf(device->uuid, sizeof device->uuid, "%s",
             sim_text(state, "", "gpu.%d.mig.%d.uuid", gpu, mig));
    device->mig = mig;
    device->gi = (int)sim_number(state, 0, "gpu.%d.mig.%d.gi", gpu, mig);
    device->total_bytes = mib << 20;
}

void local_devices(const struct local *local, struct device_list *devices)
{
    const struct sim_state *state = local->state;
    devices->count = 0;
    int count = state ? (int)sim_number(state, 0, "gpu.count") : 0;
    for (int gpu = 0; gpu < count; gpu++) {
        if (!is_usable(state, gpu))
            continue;
        bool has_mig = sim_number(state, 0, "gpu.%d.mig.mode", gpu) == 1;
        int parts = has_mig ? (int)sim_number(state, 0, "gpu.%d.mig.count", gpu) : 1;
        for (int part = 0; part < parts && devices->count < MAX_DEVICES; part++) {
            struct device *device = &devices->items[devices->count++];
            if (has_mig)
                describe_mig(state, gpu, part, device);
            else
                describe_gpu(state, gpu, device);
        }
    }
}

uint64_t local_context_bytes(const struct local *local)
{
    return local->state ? (uint64_t)sim_number(local->state, 0, "cuda.context_bytes") : 0;
}

int local_branch(const struct local *local)
{
    return local->state ? (int)sim_number(local->state, 0, "driver.branch") : 0;
}

static uint64_t free_bytes(const struct local *local, const struct device *device, int ordinal)
{
    uint64_t taken = sim_procs_used(local->state, device->index, device->gi, SIM_WHOLE_GPU);
    if (device->mig < 0)
        taken += (uint64_t)sim_number(local->state, 0, "gpu.%d.memory.reserved", device->index);
    if (local->held[ordinal] < 0)
        taken += local->procs[ordinal].used; /* the state of the node cannot be written */
    return taken < device->total_bytes ? device->total_bytes - taken : 0;
}

uint64_t local_free_bytes(struct local *local, const struct device *device, int ordinal)
{
    sim_state_refresh(local->state);
    uint64_t free = free_bytes(local, device, ordinal);
    uint64_t room = device->mig < 0
                        ? sim_cgroup_reported_room(local->state, device->index, getpid())
                        : UINT64_MAX;
    return room < free ? room : free;
}

/* Another process that opened the GPU itself, 0 if there is none. */
static int holder_of(const struct local *local, const struct device *device)
{
    struct sim_proc *list;
    int count = sim_procs_read(local->state, device->index, device->gi, SIM_WHOLE_GPU, &list);
    int holder = 0;
    for (int i = 0; i < count; i++)
        if (list[i].pid != getpid() && strcmp(list[i].type, "C") == 0)
            holder = list[i].pid;
    free(list);
    return holder;
}

static int check_mode(const struct local *local, const struct device *device,
                      struct failure *failure)
{
    int64_t mode = sim_number(local->state, 0, "gpu.%d.compute_mode", device->index);
    if (mode == PROHIBITED)
        return fail(failure, "CUDA_ERROR_DEVICE_UNAVAILABLE",
                    "all CUDA-capable devices are busy or unavailable: %s is PROHIBITED",
                    device->uuid);
    int holder = mode == EXCLUSIVE_PROCESS ? holder_of(local, device) : 0;
    if (holder)
        return fail(failure, "CUDA_ERROR_DEVICE_UNAVAILABLE",
                    "all CUDA-capable devices are busy or unavailable: %s is EXCLUSIVE_PROCESS and "
                    "held by process %d", device->uuid, holder);
    return 0;
}

int local_check(struct local *local, const struct device *device, struct failure *failure)
{
    sim_state_refresh(local->state);
    if (is_usable(local->state, device->index))
        return 0;
    return fail(failure, "CUDA_ERROR_DEVICE_UNAVAILABLE", "%s is lost", device->uuid);
}

static struct sim_proc *proc_of(struct local *local, const struct device *device, int ordinal)
{
    struct sim_proc *proc = &local->procs[ordinal];
    if (proc->pid)
        return proc;
    proc->pid = getpid();
    proc->gi = proc->ci = SIM_WHOLE_GPU;
    proc->sm = 100;
    strcpy(proc->type, "C");
    snprintf(proc->gpu, sizeof proc->gpu, "%s", device->uuid);
    ssize_t length = readlink("/proc/self/exe", proc->name, sizeof proc->name - 1);
    proc->name[length > 0 ? length : 0] = '\0';
    return proc;
}

/* Requires the lock. */
static int take(struct local *local, const struct device *device, int ordinal, uint64_t bytes,
                struct failure *failure)
{
    if (bytes > free_bytes(local, device, ordinal))
        return fail(failure, "CUDA_ERROR_OUT_OF_MEMORY", "%s is full", device->uuid);
    if (device->mig < 0 && bytes > sim_cgroup_room(local->state, device->index, getpid()))
        return fail(failure, "CUDA_ERROR_OUT_OF_MEMORY", "%s: the limit of the cgroup is reached",
                    device->uuid);
    struct sim_proc *proc = proc_of(local, device, ordinal);
    proc->used += bytes;
    local->is_registered = sim_proc_hold(local->state, proc, &local->held[ordinal]) == 0;
    return 0;
}

int local_context(struct local *local, const struct device *device, int ordinal,
                  struct warnings *warnings, struct failure *failure)
{
    if (local_check(local, device, failure) < 0)
        return -1;
    int lock = sim_lock(local->state);
    int result = check_mode(local, device, failure);
    if (result == 0)
        result = take(local, device, ordinal, local_context_bytes(local), failure);
    if (lock >= 0)
        sim_unlock(lock);
    if (result == 0 && !local->is_registered)
        warn(warnings, "not registered in the node's state: %s", strerror(errno));
    return result;
}

int local_alloc(struct local *local, const struct device *device, int ordinal, uint64_t bytes,
                struct failure *failure)
{
    if (local_check(local, device, failure) < 0)
        return -1;
    int lock = sim_lock(local->state);
    int result = take(local, device, ordinal, bytes, failure);
    if (lock >= 0)
        sim_unlock(lock);
    return result;
}
