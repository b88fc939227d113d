/* Identity of a GPU: names, numbers, versions. */
#include <stdio.h>

#include "library.h"
#include "mig.h"

NVML_API nvmlDeviceGetName(nvml_device handle, char *name, unsigned length)
{
    WITH_DEVICE(handle, device);
    if (device.mig == WHOLE_GPU)
        return give_text(gpu_text(&device, "name"), name, length);
    struct mig_profile profile;
    char text[2 * NAME_SIZE];
    int found = mig_profile_of(&device, device.mig, &profile);
    snprintf(text, sizeof text, "%s MIG %s", gpu_text(&device, "name"), found ? profile.name : "");
    return give_text(text, name, length);
}

NVML_API nvmlDeviceGetUUID(nvml_device handle, char *uuid, unsigned length)
{
    WITH_DEVICE(handle, device);
    if (device.mig == WHOLE_GPU)
        return give_text(gpu_text(&device, "uuid"), uuid, length);
    return give_text(sim_text(device.state, "", "gpu.%d.mig.%d.uuid", device.gpu, device.mig), uuid,
                     length);
}

NVML_API nvmlDeviceGetIndex(nvml_device handle, unsigned *index)
{
    WITH_DEVICE(handle, device);
    NEED(index);
    *index = (unsigned)(device.mig == WHOLE_GPU ? library_index_of(device.gpu) : device.mig);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMinorNumber(nvml_device handle, unsigned *minor)
{
    return give_number(handle, "minor", minor);
}

NVML_API nvmlDeviceGetBrand(nvml_device handle, unsigned *brand)
{
    WITH_DEVICE(handle, device);
    NEED(brand);
    *brand = (unsigned)gpu_number(&device, "brand", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetArchitecture(nvml_device handle, unsigned *arch)
{
    WITH_DEVICE(handle, device);
    NEED(arch);
    *arch = (unsigned)gpu_number(&device, "arch", 0xFFFFFFFF);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCudaComputeCapability(nvml_device handle, int *major, int *minor)
{
    WITH_DEVICE(handle, device);
    NEED(major && minor);
    return sscanf(gpu_text(&device, "cc"), "%d.%d", major, minor) == 2 ? NVML_SUCCESS
                                                                       : NVML_UNKNOWN;
}

NVML_API nvmlDeviceGetNumGpuCores(nvml_device handle, unsigned *cores)
{
    WITH_GPU(handle, device);
    NEED(cores);
    *cores = (unsigned)(gpu_number(&device, "sms", 0) * gpu_number(&device, "cores_per_sm", 0));
    return NVML_SUCCESS;
}

static int give_gpu_text(nvml_device handle, const char *key, char *out, unsigned length)
{
    WITH_GPU(handle, device);
    return gpu_has(&device, key) ? give_text(gpu_text(&device, key), out, length)
                                 : NVML_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetSerial(nvml_device handle, char *serial, unsigned length)
{
    return give_gpu_text(handle, "serial", serial, length);
}

NVML_API nvmlDeviceGetVbiosVersion(nvml_device handle, char *version, unsigned length)
{
    return give_gpu_text(handle, "vbios", version, length);
}

NVML_API nvmlDeviceGetBoardPartNumber(nvml_device handle, char *number, unsigned length)
{
    return give_gpu_text(handle, "part_number", number, length);
}

NVML_API nvmlDeviceGetInforomImageVersion(nvml_device handle, char *version, unsigned length)
{
    return give_gpu_text(handle, "inforom", version, length);
}

NVML_API nvmlDeviceGetGspFirmwareVersion(nvml_device handle, char *version)
{
    WITH_GPU(handle, device);
    NEED(version);
    if (gpu_arch(&device) < ARCH_TURING)
        return NVML_NOT_SUPPORTED;
    return give_text(sim_text(device.state, "", "driver.version"), version, VERSION_SIZE);
}

NVML_API nvmlDeviceGetGspFirmwareMode(nvml_device handle, unsigned *enabled, unsigned *by_default)
{
    WITH_GPU(handle, device);
    NEED(enabled && by_default);
    *enabled = *by_default = gpu_arch(&device) >= ARCH_TURING;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBoardId(nvml_device handle, unsigned *id)
{
    WITH_GPU(handle, device);
    NEED(id);
    unsigned domain = 0, bus = 0;
    sscanf(gpu_text(&device, "pci"), "%x:%x", &domain, &bus);
    *id = bus << 8;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMultiGpuBoard(nvml_device handle, unsigned *multi)
{
    WITH_GPU(handle, device);
    NEED(multi);
    *multi = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceOnSameBoard(nvml_device first, nvml_device second, int *same)
{
    WITH_GPU(first, device);
    NEED(second && same);
    *same = first == second;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetModuleId(nvml_device handle, unsigned *id)
{
    return give_number(handle, "module_id", id);
}
