/* Topology of GPUs and processors. */
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "nvlink.h"

enum {
    LEVEL_INTERNAL = 0,
    LEVEL_SINGLE_SWITCH = 10,
    LEVEL_HOST_BRIDGE = 30,
    LEVEL_NODE = 40,
    LEVEL_SYSTEM = 50,
};

enum { P2P_OK = 0, P2P_CHIPSET_NOT_SUPPORTED = 1, P2P_NOT_SUPPORTED = 5 };
enum { P2P_READ = 0, P2P_WRITE = 1, P2P_NVLINK = 2, P2P_ATOMICS = 3, P2P_PCI = 4 };

/* Equal, and not "none". */
static int share(const struct sim_state *state, int a, int b, const char *key)
{
    int64_t first = sim_number(state, -1, "gpu.%d.%s", a, key);
    return first >= 0 && first == sim_number(state, -1, "gpu.%d.%s", b, key);
}

static int common_ancestor(const struct sim_state *state, int a, int b)
{
    if (a == b)
        return LEVEL_INTERNAL;
    if (share(state, a, b, "pcie.switch"))
        return LEVEL_SINGLE_SWITCH;
    if (share(state, a, b, "pcie.root"))
        return LEVEL_HOST_BRIDGE;
    return share(state, a, b, "numa") ? LEVEL_NODE : LEVEL_SYSTEM;
}

NVML_API nvmlDeviceGetTopologyCommonAncestor(nvml_device first, nvml_device second, int *level)
{
    WITH_GPU(first, device);
    int other = library_gpu_of(second);
    NEED(level && other >= 0);
    *level = common_ancestor(device.state, device.gpu, other);
    return gpu_status(device.state, other);
}

NVML_API nvmlDeviceGetTopologyNearestGpus(nvml_device handle, int level, unsigned *count,
                                          nvml_device *out)
{
    WITH_GPU(handle, device);
    NEED(count);
    unsigned room = *count, found = 0;
    for (int index = 0; index < library_count(); index++) {
        int gpu = library_gpu_at(index);
        if (gpu == device.gpu || common_ancestor(device.state, device.gpu, gpu) != level)
            continue;
        if (out && found < room)
            out[found] = library_by_gpu(gpu);
        found++;
    }
    *count = out && found > room ? room : found;
    return NVML_SUCCESS;
}

static int p2p_status(const struct sim_state *state, int a, int b, unsigned capability)
{
    int linked = nvlink_between(state, a, b);
    int near = common_ancestor(state, a, b) <= LEVEL_NODE;
    switch (capability) {
    case P2P_READ:
    case P2P_WRITE:
        return linked || near ? P2P_OK : P2P_CHIPSET_NOT_SUPPORTED;
    case P2P_NVLINK:
    case P2P_ATOMICS:
        return linked ? P2P_OK : P2P_NOT_SUPPORTED;
    default:
        return near ? P2P_OK : P2P_CHIPSET_NOT_SUPPORTED;
    }
}

NVML_API nvmlDeviceGetP2PStatus(nvml_device first, nvml_device second, unsigned capability,
                                int *status)
{
    WITH_GPU(first, device);
    int other = library_gpu_of(second);
    NEED(status && other >= 0 && capability <= P2P_PCI);
    *status = p2p_status(device.state, device.gpu, other, capability);
    return gpu_status(device.state, other);
}

enum { WORD_BITS = 8 * sizeof(unsigned long) };

static void set_bit(unsigned long *words, unsigned size, unsigned bit)
{
    if (bit / WORD_BITS < size)
        words[bit / WORD_BITS] |= 1ul << bit % WORD_BITS;
}

/* A list of processors in the format of the kernel: "0-31,64-95". */
static void set_list(unsigned long *words, unsigned size, const char *list)
{
    while (*list) {
        char *end;
        unsigned first = (unsigned)strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = (unsigned)strtoul(end + 1, &end, 10);
        for (unsigned bit = first; bit <= last; bit++)
            set_bit(words, size, bit);
        list = *end == ',' ? end + 1 : end;
        if (list == end && *end)
            return;
    }
}

/* A GPU without a NUMA node has the same distance to all nodes. */
static int is_local(const struct device *device, int node)
{
    int64_t own = gpu_number(device, "numa", -1);
    return own < 0 || own == node;
}

NVML_API nvmlDeviceGetMemoryAffinity(nvml_device handle, unsigned size, unsigned long *nodes,
                                     unsigned scope)
{
    WITH_GPU(handle, device);
    NEED(nodes && size > 0 && scope <= 1);
    memset(nodes, 0, size * sizeof *nodes);
    int count = (int)sim_number(device.state, 1, "numa.count");
    for (int node = 0; node < count; node++)
        if (is_local(&device, node))
            set_bit(nodes, size, (unsigned)node);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCpuAffinityWithinScope(nvml_device handle, unsigned size, unsigned long *cpus,
                                             unsigned scope)
{
    WITH_GPU(handle, device);
    NEED(cpus && size > 0 && scope <= 1);
    memset(cpus, 0, size * sizeof *cpus);
    int count = (int)sim_number(device.state, 1, "numa.count");
    for (int node = 0; node < count; node++)
        if (is_local(&device, node))
            set_list(cpus, size, sim_text(device.state, "", "numa.%d.cpus", node));
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCpuAffinity(nvml_device handle, unsigned size, unsigned long *cpus)
{
    return nvmlDeviceGetCpuAffinityWithinScope(handle, size, cpus, 0);
}

/* The GPUs near a processor. */
NVML_API nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvml_device *out)
{
    WITH_LIBRARY(state);
    NEED(count);
    unsigned room = *count, found = 0;
    for (int index = 0; index < library_count(); index++) {
        struct device device = {state, library_gpu_at(index), WHOLE_GPU};
        unsigned long words[64] = {0};
        int64_t node = gpu_number(&device, "numa", 0);
        set_list(words, 64, sim_text(state, "", "numa.%d.cpus", (int)node));
        if (cpu / WORD_BITS >= 64 || !(words[cpu / WORD_BITS] >> cpu % WORD_BITS & 1))
            continue;
        if (out && found < room)
            out[found] = library_by_gpu(device.gpu);
        found++;
    }
    *count = out && found > room ? room : found;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAddressingMode(nvml_device handle, struct versioned_word *mode)
{
    enum { SINCE_BRANCH = 570 };
    WITH_GPU(handle, device);
    NEED(mode);
    if (driver_branch(device.state) < SINCE_BRANCH)
        return NVML_NOT_SUPPORTED;
    if (mode->version != STRUCT_VERSION(struct versioned_word, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    mode->value = (unsigned)gpu_number(&device, "addressing_mode", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCapabilities(nvml_device handle, struct versioned_word *capabilities)
{
    WITH_GPU(handle, device);
    NEED(capabilities);
    if (capabilities->version != STRUCT_VERSION(struct versioned_word, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    capabilities->value = 0;
    return NVML_SUCCESS;
}
