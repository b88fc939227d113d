/* Memory of GPUs and MIG devices, and the limits per cgroup of driver 615. */
#include <stdio.h>
#include <string.h>

#include "cgroup.h"
#include "library.h"
#include "mig.h"
#include "procs.h"

enum { LIMITS_SINCE_BRANCH = 615 };

static struct memory_v2 measure(const struct device *device)
{
    struct memory_v2 memory = {0};
    int gi = SIM_WHOLE_GPU;
    struct mig_profile profile;
    if (device->mig == WHOLE_GPU) {
        memory.total = (u64)gpu_number(device, "memory.total", 0);
        memory.reserved = (u64)gpu_number(device, "memory.reserved", 0);
    } else if (mig_profile_of(device, device->mig, &profile)) {
        memory.total = profile.memory_mb << 20;
        gi = mig_gi_of(device, device->mig);
    }
    memory.used = sim_procs_used(device->state, device->gpu, gi, SIM_WHOLE_GPU);
    u64 taken = memory.reserved + memory.used;
    memory.free = taken < memory.total ? memory.total - taken : 0;
    return memory;
}

NVML_API nvmlDeviceGetMemoryInfo(nvml_device handle, struct memory_v1 *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    struct memory_v2 memory = measure(&device);
    *out = (struct memory_v1){memory.total, memory.free, memory.total - memory.free};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct memory_v2 *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    if (out->version != STRUCT_VERSION(struct memory_v2, 2))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    unsigned version = out->version;
    *out = measure(&device);
    out->version = version;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBAR1MemoryInfo(nvml_device handle, struct bar1_memory *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    const u64 own_use = 2ull << 20;
    u64 total = (u64)gpu_number(&device, "memory.bar1", 256ll << 20);
    *out = (struct bar1_memory){total, total - own_use, own_use};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryBusWidth(nvml_device handle, unsigned *bits)
{
    return give_number(handle, "memory.bus_width", bits);
}

static int limits_supported(const struct device *device)
{
    return driver_branch(device->state) >= LIMITS_SINCE_BRANCH && device->mig == WHOLE_GPU &&
           !gpu_mig_enabled(device);
}

NVML_API nvmlDeviceSetMemoryLimits_v1(nvml_device handle, const struct memory_limits *limits)
{
    WITH_DEVICE(handle, device);
    if (!limits_supported(&device))
        return NVML_NOT_SUPPORTED;
    NEED(limits && limits->cgroup && *limits->cgroup && !strpbrk(limits->cgroup, "=\n"));
    NEED(limits->soft <= limits->hard);
    if (!may_administer(device.state))
        return NVML_NO_PERMISSION;
    if (gpu_number(&device, "limits.ignored", 0))
        return NVML_SUCCESS;
    char line[4608];
    int length = snprintf(line, sizeof line, "gpu.%d.limits.%s=%llu %llu\n", device.gpu,
                          sim_cgroup_below_mount(limits->cgroup), limits->soft, limits->hard);
    NEED(length < (int)sizeof line);
    return sim_state_append(device.state, line) == 0 ? NVML_SUCCESS : NVML_UNKNOWN;
}

NVML_API nvmlDeviceGetMemoryLimits_v1(nvml_device handle, struct memory_limits_used *limits)
{
    WITH_DEVICE(handle, device);
    if (!limits_supported(&device))
        return NVML_NOT_SUPPORTED;
    NEED(limits && limits->cgroup);
    const char *cgroup = sim_cgroup_below_mount(limits->cgroup);
    sim_cgroup_limits(device.state, device.gpu, cgroup, &limits->soft, &limits->hard);
    limits->used = sim_cgroup_used(device.state, device.gpu, cgroup);
    return NVML_SUCCESS;
}
