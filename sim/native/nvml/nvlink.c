/* NVLink and the fabric. gpu.<i>.nvlink.<n> is "gpu:<bus id>", "switch:<bus id>" or "off". */
#include "nvlink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "pci.h"

enum { MAX_LINKS = 36 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2, REMOTE_UNKNOWN = 0xFF };
enum { CAPABILITY_P2P = 0, CAPABILITY_P2P_ATOMICS = 2, CAPABILITY_VALID = 5, CAPABILITIES = 6 };

static const char *remote_of(const struct sim_state *state, int gpu, int link)
{
    const char *text = sim_text(state, "off", "gpu.%d.nvlink.%d", gpu, link);
    return strcmp(text, "off") == 0 ? NULL : text;
}

static int remote_type(const char *remote)
{
    if (!remote)
        return REMOTE_UNKNOWN;
    return strncmp(remote, "switch:", 7) == 0 ? REMOTE_SWITCH : REMOTE_GPU;
}

static const char *remote_bus_id(const char *remote)
{
    const char *colon = strchr(remote, ':');
    return colon ? colon + 1 : "";
}

static int has_switch(const struct sim_state *state, int gpu)
{
    for (int link = 0; link < MAX_LINKS; link++)
        if (remote_type(remote_of(state, gpu, link)) == REMOTE_SWITCH)
            return 1;
    return 0;
}

int nvlink_between(const struct sim_state *state, int a, int b)
{
    if (a == b)
        return 0;
    if (has_switch(state, a) && has_switch(state, b))
        return 1;
    const char *bus_id = sim_text(state, "", "gpu.%d.pci", b);
    for (int link = 0; link < MAX_LINKS; link++) {
        const char *remote = remote_of(state, a, link);
        if (remote && strcasecmp(remote_bus_id(remote), bus_id) == 0)
            return 1;
    }
    return 0;
}

#define WITH_LINK(handle, link, name)                                                              \
    WITH_GPU(handle, name);                                                                        \
    if (gpu_number(&name, "nvlink.count", 0) == 0)                                                 \
        return NVML_NOT_SUPPORTED;                                                                 \
    NEED(link < (unsigned)gpu_number(&name, "nvlink.count", 0))

NVML_API nvmlDeviceGetNvLinkState(nvml_device handle, unsigned link, unsigned *active)
{
    WITH_LINK(handle, link, device);
    NEED(active);
    *active = remote_of(device.state, device.gpu, (int)link) != NULL;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkVersion(nvml_device handle, unsigned link, unsigned *version)
{
    WITH_LINK(handle, link, device);
    NEED(version);
    *version = (unsigned)gpu_number(&device, "nvlink.version", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkCapability(nvml_device handle, unsigned link, unsigned capability,
                                       unsigned *result)
{
    WITH_LINK(handle, link, device);
    NEED(result && capability < CAPABILITIES);
    *result = capability == CAPABILITY_P2P || capability == CAPABILITY_P2P_ATOMICS ||
              capability == CAPABILITY_VALID;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_device handle, unsigned link,
                                             struct pci_info_v3 *out)
{
    WITH_LINK(handle, link, device);
    NEED(out);
    const char *remote = remote_of(device.state, device.gpu, (int)link);
    if (!remote)
        return NVML_NOT_SUPPORTED;
    pci_parse(remote_bus_id(remote), out);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo(nvml_device handle, unsigned link,
                                          struct pci_info_v2 *out)
{
    struct pci_info_v3 info;
    NEED(out);
    int status = nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, &info);
    if (status == NVML_SUCCESS) {
        memcpy(out->bus_id, info.bus_id_legacy, sizeof out->bus_id);
        out->domain = info.domain;
        out->bus = info.bus;
        out->device = info.device;
    }
    return status;
}

NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(nvml_device handle, unsigned link, int *type)
{
    WITH_LINK(handle, link, device);
    NEED(type);
    *type = remote_type(remote_of(device.state, device.gpu, (int)link));
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkErrorCounter(nvml_device handle, unsigned link, unsigned counter,
                                         u64 *count)
{
    WITH_LINK(handle, link, device);
    NEED(count && counter < 5);
    *count =
        (u64)sim_number(device.state, 0, "gpu.%d.nvlink.%u.errors.%u", device.gpu, link, counter);
    return NVML_SUCCESS;
}

static int parse_uuid(const char *text, unsigned char *bytes)
{
    int count = 0;
    for (const char *c = text; *c && count < FABRIC_UUID_SIZE; c++) {
        unsigned value;
        if (*c == '-')
            continue;
        if (sscanf(c, "%2x", &value) != 1)
            break;
        bytes[count++] = (unsigned char)value;
        c++;
    }
    return count == FABRIC_UUID_SIZE;
}

static int describe_fabric(const struct device *device, struct fabric_info_v3 *out)
{
    enum { HEALTHY = 1 };
    if (!gpu_has(device, "fabric.state"))
        return NVML_NOT_SUPPORTED;
    *out = (struct fabric_info_v3){
        .status = (int)gpu_number(device, "fabric.status", 0),
        .clique = (unsigned)gpu_number(device, "fabric.clique", 0),
        .state = (unsigned char)gpu_number(device, "fabric.state", 0),
        .health_mask = (unsigned)gpu_number(device, "fabric.health", 0),
        .health_summary = HEALTHY,
    };
    parse_uuid(gpu_text(device, "fabric.cluster"), out->cluster);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuFabricInfo(nvml_device handle, struct fabric_info *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    struct fabric_info_v3 info;
    int status = describe_fabric(&device, &info);
    if (status != NVML_SUCCESS)
        return status;
    *out = (struct fabric_info){.status = info.status, .clique = info.clique, .state = info.state};
    memcpy(out->cluster, info.cluster, sizeof out->cluster);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuFabricInfoV(nvml_device handle, void *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    struct fabric_info_v3 info;
    int status = describe_fabric(&device, &info);
    if (status != NVML_SUCCESS)
        return status;
    unsigned version = *(unsigned *)out;
    info.version = version;
    if (version == STRUCT_VERSION(struct fabric_info_v3, 3))
        *(struct fabric_info_v3 *)out = info;
    else if (version == STRUCT_VERSION(struct fabric_info_v2, 2)) {
        struct fabric_info_v2 *older = out;
        *older = (struct fabric_info_v2){.version = version,
                                         .status = info.status,
                                         .clique = info.clique,
                                         .state = info.state,
                                         .health_mask = info.health_mask};
        memcpy(older->cluster, info.cluster, sizeof older->cluster);
    } else
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}
