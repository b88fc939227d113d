/* Processes and utilization of a GPU. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "library.h"
#include "mig.h"
#include "procs.h"

enum kind { COMPUTE = 'C', GRAPHICS = 'G', MPS = 'M', ANY = 0 };

static u64 now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000ull + (u64)now.tv_nsec / 1000;
}

/* The processes of one kind. Those of a GPU include those of its MIG devices. */
static int list_processes(const struct device *device, enum kind kind, struct sim_proc **list)
{
    int gi = SIM_WHOLE_GPU, ci = SIM_WHOLE_GPU;
    if (device->mig != WHOLE_GPU) {
        gi = mig_gi_of(device, device->mig);
        ci = mig_ci_of(device, device->mig);
    }
    int count = sim_procs_read(device->state, device->gpu, gi, ci, list);
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (kind == ANY || strchr((*list)[i].type, kind))
            (*list)[kept++] = (*list)[i];
    return count < 0 ? count : kept;
}

static void fill_v1(void *array, int i, const struct sim_proc *proc)
{
    ((struct process_v1 *)array)[i] = (struct process_v1){(unsigned)proc->pid, proc->used};
}

static void fill_v2(void *array, int i, const struct sim_proc *proc)
{
    ((struct process_v2 *)array)[i] = (struct process_v2){(unsigned)proc->pid, proc->used,
                                                          (unsigned)proc->gi, (unsigned)proc->ci};
}

static void fill_detail(void *array, int i, const struct sim_proc *proc)
{
    ((struct process_detail *)array)[i] = (struct process_detail){
        (unsigned)proc->pid, proc->used, (unsigned)proc->gi, (unsigned)proc->ci, 0};
}

typedef void fill_function(void *array, int i, const struct sim_proc *proc);

/* As in NVML: if the buffer is too small, returns INSUFFICIENT_SIZE and the required count. */
static int give_processes(nvml_device handle, enum kind kind, unsigned *count, void *out,
                          fill_function *fill, const char *call)
{
    WITH_DEVICE_FOR(handle, device, call);
    NEED(count);
    struct sim_proc *list;
    int found = list_processes(&device, kind, &list);
    unsigned room = out ? *count : 0;
    int status = found < 0 ? NVML_UNKNOWN : NVML_SUCCESS;
    if (found >= 0) {
        *count = (unsigned)found;
        if (room < (unsigned)found)
            status = NVML_INSUFFICIENT_SIZE;
        else
            for (int i = 0; i < found; i++)
                fill(out, i, &list[i]);
    }
    free(list);
    return status;
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, COMPUTE, count, out, fill_v1, __func__);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, COMPUTE, count, out, fill_v2, __func__);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, COMPUTE, count, out, fill_v2, __func__);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, GRAPHICS, count, out, fill_v1, __func__);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v2(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, GRAPHICS, count, out, fill_v2, __func__);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, GRAPHICS, count, out, fill_v2, __func__);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, MPS, count, out, fill_v1, __func__);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v2(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, MPS, count, out, fill_v2, __func__);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device handle, unsigned *count, void *out)
{
    return give_processes(handle, MPS, count, out, fill_v2, __func__);
}

NVML_API nvmlDeviceGetRunningProcessDetailList(nvml_device handle, struct process_detail_list *list)
{
    static const enum kind kinds[] = {COMPUTE, GRAPHICS, MPS, ANY};
    NEED(list && list->mode < sizeof kinds / sizeof *kinds);
    if (list->version != STRUCT_VERSION(struct process_detail_list, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return give_processes(handle, kinds[list->mode], &list->count, list->array, fill_detail,
                          __func__);
}

/* Processes with a utilization. Unlike the lists above, returns NOT_FOUND if there are none. */
static int list_busy(const struct device *device, struct sim_proc **list)
{
    int count = list_processes(device, ANY, list), busy = 0;
    for (int i = 0; i < count; i++)
        if ((*list)[i].sm || (*list)[i].memory)
            (*list)[busy++] = (*list)[i];
    return busy;
}

NVML_API nvmlDeviceGetProcessUtilization(nvml_device handle, struct process_utilization *out,
                                         unsigned *count, u64 last_seen_us)
{
    WITH_GPU(handle, device);
    NEED(count);
    if (gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    struct sim_proc *list;
    unsigned busy = (unsigned)list_busy(&device, &list), room = out ? *count : 0;
    u64 time = now_us();
    int status = busy == 0 || time <= last_seen_us ? NVML_NOT_FOUND
                 : room < busy                     ? NVML_INSUFFICIENT_SIZE
                                                   : NVML_SUCCESS;
    *count = status == NVML_NOT_FOUND ? 0 : busy;
    for (unsigned i = 0; status == NVML_SUCCESS && i < busy; i++)
        out[i] = (struct process_utilization){(unsigned)list[i].pid, time, list[i].sm,
                                              list[i].memory,        0,    0};
    free(list);
    return status;
}

NVML_API nvmlDeviceGetProcessesUtilizationInfo(nvml_device handle,
                                               struct processes_utilization_info *info)
{
    WITH_GPU(handle, device);
    NEED(info);
    if (info->version != STRUCT_VERSION(struct processes_utilization_info, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    if (gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    struct sim_proc *list;
    unsigned busy = (unsigned)list_busy(&device, &list), room = info->array ? info->count : 0;
    u64 time = now_us();
    int status = busy == 0 || time <= info->last_seen ? NVML_NOT_FOUND
                 : room < busy                        ? NVML_INSUFFICIENT_SIZE
                                                      : NVML_SUCCESS;
    info->count = status == NVML_NOT_FOUND ? 0 : busy;
    for (unsigned i = 0; status == NVML_SUCCESS && i < busy; i++)
        info->array[i] = (struct process_utilization_info){
            time, (unsigned)list[i].pid, list[i].sm, list[i].memory, 0, 0, 0, 0};
    free(list);
    return status;
}

static unsigned at_most_100(unsigned percent)
{
    return percent > 100 ? 100 : percent;
}

/* The value of the record, or the sum over the processes. */
static struct utilization measure(const struct device *device)
{
    struct sim_proc *list;
    int count = list_processes(device, ANY, &list);
    struct utilization sum = {0};
    for (int i = 0; i < count; i++) {
        sum.gpu += list[i].sm;
        sum.memory += list[i].memory;
    }
    free(list);
    sum.gpu = (unsigned)gpu_number(device, "utilization.gpu", at_most_100(sum.gpu));
    sum.memory = (unsigned)gpu_number(device, "utilization.memory", at_most_100(sum.memory));
    return sum;
}

NVML_API nvmlDeviceGetUtilizationRates(nvml_device handle, struct utilization *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    if (gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    *out = measure(&device);
    return NVML_SUCCESS;
}

static int give_engine(nvml_device handle, const char *key, unsigned *percent, unsigned *period_us)
{
    WITH_GPU(handle, device);
    NEED(percent && period_us);
    *percent = (unsigned)gpu_number(&device, key, 0);
    *period_us = 167000;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetEncoderUtilization(nvml_device handle, unsigned *percent, unsigned *period_us)
{
    return give_engine(handle, "utilization.encoder", percent, period_us);
}

NVML_API nvmlDeviceGetDecoderUtilization(nvml_device handle, unsigned *percent, unsigned *period_us)
{
    return give_engine(handle, "utilization.decoder", percent, period_us);
}

NVML_API nvmlDeviceGetJpgUtilization(nvml_device handle, unsigned *percent, unsigned *period_us)
{
    return give_engine(handle, "utilization.jpeg", percent, period_us);
}

NVML_API nvmlDeviceGetOfaUtilization(nvml_device handle, unsigned *percent, unsigned *period_us)
{
    return give_engine(handle, "utilization.ofa", percent, period_us);
}

/* One current sample. The real driver keeps several. */
NVML_API nvmlDeviceGetSamples(nvml_device handle, unsigned type, u64 last_seen_us, int *value_type,
                              unsigned *count, struct sample *out)
{
    enum { POWER = 0, GPU_UTILIZATION = 1, MEMORY_UTILIZATION = 2 };
    WITH_GPU(handle, device);
    NEED(value_type && count);
    if (type > MEMORY_UTILIZATION || gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    u64 time = now_us();
    if (time <= last_seen_us)
        return NVML_NOT_FOUND;
    *value_type = VALUE_UNSIGNED_INT;
    if (out && *count < 1)
        return NVML_INSUFFICIENT_SIZE;
    *count = 1;
    if (!out)
        return NVML_SUCCESS;
    struct utilization rates = measure(&device);
    out->timestamp_us = time;
    out->value.unsigned_long_long = 0;
    out->value.unsigned_int = type == GPU_UTILIZATION ? rates.gpu
                              : type == MEMORY_UTILIZATION
                                  ? rates.memory
                                  : (unsigned)gpu_number(&device, "power.usage", 0);
    return NVML_SUCCESS;
}
