/* Modes of a GPU that root can change, and modes that are fixed here. */
#include "library.h"

NVML_API nvmlDeviceGetComputeMode(nvml_device handle, unsigned *mode)
{
    WITH_DEVICE(handle, device);
    NEED(mode);
    *mode = (unsigned)gpu_number(&device, "compute_mode", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetComputeMode(nvml_device handle, unsigned mode)
{
    enum { DEFAULT = 0, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };
    WITH_DEVICE(handle, device);
    /* With MIG, the mode is always DEFAULT. 1 was EXCLUSIVE_THREAD, which was removed. */
    if (device.mig != WHOLE_GPU || gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    NEED(mode == DEFAULT || mode == PROHIBITED || mode == EXCLUSIVE_PROCESS);
    return gpu_set(&device, "compute_mode", mode);
}

NVML_API nvmlDeviceGetPersistenceMode(nvml_device handle, unsigned *mode)
{
    WITH_GPU(handle, device);
    NEED(mode);
    *mode = (unsigned)gpu_number(&device, "persistence", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetPersistenceMode(nvml_device handle, unsigned mode)
{
    WITH_GPU(handle, device);
    NEED(mode <= 1);
    return gpu_set(&device, "persistence", mode);
}

NVML_API nvmlDeviceClearEccErrorCounts(nvml_device handle, unsigned counter)
{
    WITH_GPU(handle, device);
    NEED(counter <= 1);
    if (!gpu_has(&device, "ecc.mode"))
        return NVML_NOT_SUPPORTED;
    int status =
        gpu_set(&device, counter == 0 ? "ecc.corrected.volatile" : "ecc.corrected.aggregate", 0);
    if (status != NVML_SUCCESS)
        return status;
    return gpu_set(&device, counter == 0 ? "ecc.uncorrected.volatile" : "ecc.uncorrected.aggregate",
                   0);
}

static int give_off(nvml_device handle, unsigned *mode)
{
    WITH_GPU(handle, device);
    NEED(mode);
    *mode = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDisplayMode(nvml_device handle, unsigned *mode)
{
    return give_off(handle, mode);
}

NVML_API nvmlDeviceGetDisplayActive(nvml_device handle, unsigned *active)
{
    return give_off(handle, active);
}

NVML_API nvmlDeviceGetAccountingMode(nvml_device handle, unsigned *mode)
{
    return give_off(handle, mode);
}

NVML_API nvmlDeviceGetVirtualizationMode(nvml_device handle, unsigned *mode)
{
    return give_off(handle, mode);
}

NVML_API nvmlDeviceGetPowerManagementMode(nvml_device handle, unsigned *mode)
{
    WITH_GPU(handle, device);
    NEED(mode);
    *mode = 1;
    return NVML_SUCCESS;
}
