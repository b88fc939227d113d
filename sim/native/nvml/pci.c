/* PCI identity and link of a GPU. */
#include <stdio.h>
#include <string.h>

#include "library.h"
#include "pci.h"

enum { CLASS_DISPLAY = 3, SUBCLASS_3D = 2 };

void pci_parse(const char *bus_id, struct pci_info_v3 *out)
{
    memset(out, 0, sizeof *out);
    sscanf(bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xFF,
             out->device & 0xFF);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
             out->domain & 0xFFFF, out->bus & 0xFF, out->device & 0xFF);
}

static struct pci_info_v3 describe(const struct device *device)
{
    struct pci_info_v3 info;
    pci_parse(gpu_text(device, "pci"), &info);
    info.device_id = (unsigned)gpu_number(device, "pci.device_id", 0);
    info.subsystem_id = (unsigned)gpu_number(device, "pci.subsystem_id", 0);
    return info;
}

NVML_API nvmlDeviceGetPciInfo_v3(nvml_device handle, struct pci_info_v3 *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    *out = describe(&device);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo_v2(nvml_device handle, struct pci_info_v2 *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    struct pci_info_v3 info = describe(&device);
    *out = (struct pci_info_v2){.domain = info.domain,
                                .bus = info.bus,
                                .device = info.device,
                                .device_id = info.device_id,
                                .subsystem_id = info.subsystem_id};
    memcpy(out->bus_id, info.bus_id_legacy, sizeof out->bus_id);
    return NVML_SUCCESS;
}

/* The oldest version: the same without the reserved words. */
NVML_API nvmlDeviceGetPciInfo(nvml_device handle, struct pci_info_v2 *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    struct pci_info_v3 info = describe(&device);
    memcpy(out->bus_id, info.bus_id_legacy, sizeof out->bus_id);
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->device_id = info.device_id;
    out->subsystem_id = info.subsystem_id;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfoExt(nvml_device handle, struct pci_info_ext *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    if (out->version != STRUCT_VERSION(struct pci_info_ext, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    struct pci_info_v3 info = describe(&device);
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->device_id = info.device_id;
    out->subsystem_id = info.subsystem_id;
    out->base_class = CLASS_DISPLAY;
    out->sub_class = SUBCLASS_3D;
    memcpy(out->bus_id, info.bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMaxPcieLinkGeneration(nvml_device handle, unsigned *generation)
{
    return give_number(handle, "pcie.gen", generation);
}

NVML_API nvmlDeviceGetGpuMaxPcieLinkGeneration(nvml_device handle, unsigned *generation)
{
    return give_number(handle, "pcie.gen", generation);
}

NVML_API nvmlDeviceGetCurrPcieLinkGeneration(nvml_device handle, unsigned *generation)
{
    return give_number(handle, "pcie.gen", generation);
}

NVML_API nvmlDeviceGetMaxPcieLinkWidth(nvml_device handle, unsigned *width)
{
    return give_number(handle, "pcie.width", width);
}

NVML_API nvmlDeviceGetCurrPcieLinkWidth(nvml_device handle, unsigned *width)
{
    return give_number(handle, "pcie.width", width);
}

static int give_zero(nvml_device handle, unsigned *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    *out = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPcieThroughput(nvml_device handle, int counter, unsigned *kib_per_second)
{
    (void)counter;
    return give_zero(handle, kib_per_second);
}

NVML_API nvmlDeviceGetPcieReplayCounter(nvml_device handle, unsigned *count)
{
    return give_zero(handle, count);
}

NVML_API nvmlDeviceGetBusType(nvml_device handle, unsigned *type)
{
    enum { BUS_PCIE = 2 };
    WITH_GPU(handle, device);
    NEED(type);
    *type = BUS_PCIE;
    return NVML_SUCCESS;
}
