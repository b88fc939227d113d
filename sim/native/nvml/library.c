#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "locate.h"

/* The target of nvmlDevice_t. The handle of a GPU is in `gpus`, at the index of its record. */
struct handle {
    struct handle *next;
    int gpu;
    char mig[UUID_SIZE]; /* empty for the GPU itself */
};

enum { HANG_POLL_US = 10000 };

/* Process-wide, like in the real library: NVML has no session object. */
static struct {
    pthread_mutex_t lock;
    int users;
    struct sim_state *state;
    struct handle gpus[MAX_GPUS];
    int order[MAX_GPUS]; /* NVML index -> record */
    int count;
    struct handle *migs;
    struct instance *instances;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

void library_leave(int *held)
{
    if (*held)
        pthread_mutex_unlock(&library.lock);
}

void library_pause(void)
{
    pthread_mutex_unlock(&library.lock);
}

void library_resume(void)
{
    pthread_mutex_lock(&library.lock);
}

int library_is_initialized(void)
{
    return library.users > 0;
}

struct sim_state *library_state(void)
{
    return library.state;
}

static int hangs(const char *call, int gpu)
{
    const struct sim_state *state = library.state;
    if (sim_number(state, 0, "fault.hang") || sim_number(state, 0, "fault.hang.%s", call))
        return 1;
    return gpu != NO_GPU && (sim_number(state, 0, "gpu.%d.fault.hang", gpu) ||
                             sim_number(state, 0, "gpu.%d.fault.hang.%s", gpu, call));
}

void library_hang(const char *call, int gpu)
{
    while (library.state && sim_state_refresh(library.state) == 0 && hangs(call, gpu)) {
        library_pause();
        usleep(HANG_POLL_US);
        library_resume();
    }
}

int library_enter(int *held, struct sim_state **state, const char *call)
{
    pthread_mutex_lock(&library.lock);
    *held = 1;
    library_hang(call, NO_GPU);
    if (library.users == 0)
        return NVML_UNINITIALIZED;
    if (sim_state_refresh(library.state) < 0)
        return NVML_UNKNOWN;
    *state = library.state;
    return NVML_SUCCESS;
}

/*
 * In a container, the driver enumerates only GPUs with a device node. enumerate.device_nodes=1 has
 * the same effect. Without /dev/nvidiactl (no device nodes at all), all GPUs are enumerated.
 */
static int is_enumerable(const struct sim_state *state, int gpu)
{
    if (!sim_number(state, 1, "gpu.%d.present", gpu))
        return 0;
    if (!sim_number(state, 0, "enumerate.device_nodes") || access("/dev/nvidiactl", F_OK) != 0)
        return 1;
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%d", (int)sim_number(state, gpu, "gpu.%d.minor", gpu));
    return access(path, F_OK) == 0;
}

static void enumerate_gpus(void)
{
    library.count = 0;
    int records = (int)sim_number(library.state, 0, "gpu.count");
    for (int gpu = 0; gpu < records && gpu < MAX_GPUS; gpu++) {
        library.gpus[gpu].gpu = gpu;
        if (is_enumerable(library.state, gpu))
            library.order[library.count++] = gpu;
    }
}

static struct sim_state *open_node(void)
{
    Dl_info self;
    char directory[PATH_MAX];
    const char *file = dladdr(&library, &self) ? self.dli_fname : NULL;
    return sim_locate_node(file, directory, sizeof directory) == 0 ? sim_state_open(directory)
                                                                   : NULL;
}

static int open_state(void)
{
    if (!library.state)
        library.state = open_node();
    return library.state && sim_state_refresh(library.state) == 0 ? 0 : -1;
}

int library_enter_uninitialized(int *held, struct sim_state **state)
{
    pthread_mutex_lock(&library.lock);
    *held = 1;
    if (open_state() < 0)
        return NVML_LIBRARY_NOT_FOUND;
    *state = library.state;
    return NVML_SUCCESS;
}

int library_init(void)
{
    HOLD_LOCK;
    pthread_mutex_lock(&library.lock);
    held_ = 1;
    if (open_state() < 0)
        return NVML_DRIVER_NOT_LOADED;
    library_hang("nvmlInit", NO_GPU);
    if (library.users == 0) {
        int fault = (int)sim_number(library.state, 0, "fault.nvml_init");
        if (fault)
            return fault;
        enumerate_gpus();
    }
    library.users++;
    return NVML_SUCCESS;
}

/* The state stays open: handles, and waits that have not ended, may still use it. */
int library_shutdown(void)
{
    HOLD_LOCK;
    pthread_mutex_lock(&library.lock);
    held_ = 1;
    library_hang("nvmlShutdown", NO_GPU);
    if (library.users == 0)
        return NVML_UNINITIALIZED;
    library.users--;
    return NVML_SUCCESS;
}

int library_count(void)
{
    return library.count;
}

int library_gpu_at(int index)
{
    return library.order[index];
}

int library_index_of(int gpu)
{
    for (int index = 0; index < library.count; index++)
        if (library.order[index] == gpu)
            return index;
    return -1;
}

int library_gpu_of(nvml_device handle)
{
    for (int index = 0; index < library.count; index++)
        if (handle == &library.gpus[library.order[index]])
            return library.order[index];
    return -1;
}

nvml_device library_by_gpu(int gpu)
{
    return &library.gpus[gpu];
}

/* Handles are never freed, so that a device always has the same handle. */
nvml_device library_mig_handle(int gpu, const char *uuid)
{
    for (struct handle *handle = library.migs; handle; handle = handle->next)
        if (strcmp(handle->mig, uuid) == 0)
            return handle;
    struct handle *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return NULL;
    fresh->gpu = gpu;
    snprintf(fresh->mig, sizeof fresh->mig, "%s", uuid);
    fresh->next = library.migs;
    return library.migs = fresh;
}

nvml_instance library_instance(int gpu, int gi, int ci)
{
    for (struct instance *known = library.instances; known; known = known->next)
        if (known->gpu == gpu && known->gi == gi && known->ci == ci)
            return known;
    struct instance *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return NULL;
    *fresh = (struct instance){library.instances, gpu, gi, ci};
    return library.instances = fresh;
}

int library_enter_instance(int *held, nvml_instance handle, struct instance *instance,
                           struct sim_state **state, const char *call)
{
    int status = library_enter(held, state, call);
    if (status != NVML_SUCCESS)
        return status;
    for (struct instance *known = library.instances; known; known = known->next)
        if (known == handle) {
            library_hang(call, known->gpu);
            *instance = *known;
            return gpu_status(*state, known->gpu);
        }
    return NVML_INVALID_ARGUMENT;
}

int gpu_status(const struct sim_state *state, int gpu)
{
    int lost =
        sim_number(state, 0, "gpu.%d.lost", gpu) || !sim_number(state, 1, "gpu.%d.present", gpu);
    return lost ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

static int is_mig_handle(nvml_device handle)
{
    for (struct handle *known = library.migs; known; known = known->next)
        if (known == handle)
            return 1;
    return 0;
}

int library_enter_device(int *held, nvml_device handle, struct device *device, const char *call)
{
    int status = library_enter(held, &device->state, call);
    if (status != NVML_SUCCESS)
        return status;
    device->mig = WHOLE_GPU;
    device->gpu = library_gpu_of(handle);
    if (device->gpu < 0 && is_mig_handle(handle))
        device->gpu = sim_mig_by_uuid(device->state, handle->mig, &device->mig);
    if (device->gpu < 0)
        return NVML_INVALID_ARGUMENT; /* or a MIG device that the current layout does not have */
    library_hang(call, device->gpu);
    int fault = (int)sim_number(device->state, 0, "gpu.%d.fault.%s", device->gpu, call);
    return fault ? fault : gpu_status(device->state, device->gpu);
}

const char *gpu_text(const struct device *device, const char *key)
{
    return sim_text(device->state, "", "gpu.%d.%s", device->gpu, key);
}

int64_t gpu_number(const struct device *device, const char *key, int64_t fallback)
{
    return sim_number(device->state, fallback, "gpu.%d.%s", device->gpu, key);
}

int gpu_has(const struct device *device, const char *key)
{
    return *gpu_text(device, key) != '\0';
}

int gpu_arch(const struct device *device)
{
    return (int)gpu_number(device, "arch", 0);
}

int gpu_mig_enabled(const struct device *device)
{
    return gpu_number(device, "mig.mode", 0) == 1;
}

int driver_branch(const struct sim_state *state)
{
    return (int)sim_number(state, 0, "driver.branch");
}

int give_text(const char *text, char *out, unsigned length)
{
    NEED(out);
    if (strlen(text) >= length)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

int may_administer(const struct sim_state *state)
{
    char path[PATH_MAX];
    struct stat directory;
    snprintf(path, sizeof path, "%s/state", sim_state_directory(state));
    uid_t user = geteuid();
    return user == 0 || (stat(path, &directory) == 0 && user == directory.st_uid);
}

int gpu_set(const struct device *device, const char *key, int64_t value)
{
    if (!may_administer(device->state))
        return NVML_NO_PERMISSION;
    char line[160];
    snprintf(line, sizeof line, "gpu.%d.%s=%lld\n", device->gpu, key, (long long)value);
    if (sim_state_append(device->state, line) == 0)
        return NVML_SUCCESS;
    return errno == EACCES || errno == EPERM || errno == EROFS ? NVML_NO_PERMISSION : NVML_UNKNOWN;
}

int give_number_for(nvml_device handle, const char *key, unsigned *out, const char *call)
{
    WITH_DEVICE_FOR(handle, device, call);
    NEED(out);
    if (device.mig != WHOLE_GPU)
        return NVML_NOT_SUPPORTED;
    if (!gpu_has(&device, key))
        return NVML_NOT_SUPPORTED;
    *out = (unsigned)gpu_number(&device, key, 0);
    return NVML_SUCCESS;
}
