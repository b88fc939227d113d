/* Memory of GPUs and MIG devices, and the limits per cgroup of driver 615. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The path below the cgroup mount, as /proc/<pid>/cgroup shows it. */
static const char *cgroup_of(const char *path)
{
    static const char mount[] = "/sys/fs/cgroup";
    return strncmp(path, mount, sizeof mount - 1) == 0 ? path + sizeof mount - 1 : path;
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
    char line[4608];
    int length = snprintf(line, sizeof line, "gpu.%d.limits.%s=%llu %llu\n", device.gpu,
                          cgroup_of(limits->cgroup), limits->soft, limits->hard);
    NEED(length < (int)sizeof line);
    return sim_state_append(device.state, line) == 0 ? NVML_SUCCESS : NVML_UNKNOWN;
}

/* 1 if the process is in the cgroup or below it. */
static int is_inside(int pid, const char *cgroup)
{
    char path[32], text[4608];
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = strlen(cgroup);
    int inside = 0;
    while (!inside && fgets(text, sizeof text, file)) {
        text[strcspn(text, "\n")] = '\0';
        if (strncmp(text, "0::", 3) == 0 && strncmp(text + 3, cgroup, length) == 0)
            inside = text[3 + length] == '\0' || text[3 + length] == '/';
    }
    fclose(file);
    return inside;
}

NVML_API nvmlDeviceGetMemoryLimits_v1(nvml_device handle, struct memory_limits_used *limits)
{
    WITH_DEVICE(handle, device);
    if (!limits_supported(&device))
        return NVML_NOT_SUPPORTED;
    NEED(limits && limits->cgroup);
    const char *cgroup = cgroup_of(limits->cgroup);
    limits->soft = 0;
    limits->hard = ~0ull;
    const char *stored = sim_text(device.state, "", "gpu.%d.limits.%s", device.gpu, cgroup);
    sscanf(stored, "%llu %llu", &limits->soft, &limits->hard);
    limits->used = 0;
    struct sim_proc *list;
    int count = sim_procs_read(device.state, device.gpu, SIM_WHOLE_GPU, SIM_WHOLE_GPU, &list);
    for (int i = 0; i < count; i++)
        if (is_inside(list[i].pid, cgroup))
            limits->used += list[i].used;
    free(list);
    return NVML_SUCCESS;
}
