/* MIG mode and MIG device handles. */
#include "mig.h"

NVML_API nvmlDeviceGetMigMode(nvml_device handle, unsigned *current, unsigned *pending)
{
    WITH_GPU(handle, device);
    NEED(current && pending);
    if (!gpu_number(&device, "mig.capable", 0))
        return NVML_NOT_SUPPORTED;
    *current = (unsigned)gpu_number(&device, "mig.mode", 0);
    *pending = (unsigned)gpu_number(&device, "mig.pending", *current);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMaxMigDeviceCount(nvml_device handle, unsigned *count)
{
    WITH_GPU(handle, device);
    NEED(count);
    *count = gpu_mig_enabled(&device) ? (unsigned)gpu_number(&device, "mig.max", 0) : 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvml_device handle, unsigned index, nvml_device *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    if (!gpu_number(&device, "mig.capable", 0))
        return NVML_NOT_SUPPORTED;
    if (index >= (unsigned)mig_count(&device))
        return NVML_NOT_FOUND;
    const char *uuid = sim_text(device.state, "", "gpu.%d.mig.%u.uuid", device.gpu, index);
    *out = library_mig_handle(device.gpu, uuid);
    return *out ? NVML_SUCCESS : NVML_MEMORY;
}

NVML_API nvmlDeviceIsMigDeviceHandle(nvml_device handle, unsigned *is_mig)
{
    WITH_DEVICE(handle, device);
    NEED(is_mig);
    *is_mig = device.mig != WHOLE_GPU;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_device handle, nvml_device *parent)
{
    WITH_DEVICE(handle, device);
    NEED(parent && device.mig != WHOLE_GPU);
    *parent = library_by_gpu(device.gpu);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceId(nvml_device handle, unsigned *id)
{
    WITH_DEVICE(handle, device);
    NEED(id);
    if (device.mig == WHOLE_GPU)
        return NVML_NOT_SUPPORTED;
    *id = (unsigned)mig_gi_of(&device, device.mig);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeInstanceId(nvml_device handle, unsigned *id)
{
    WITH_DEVICE(handle, device);
    NEED(id);
    if (device.mig == WHOLE_GPU)
        return NVML_NOT_SUPPORTED;
    *id = (unsigned)mig_ci_of(&device, device.mig);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAttributes_v2(nvml_device handle, struct attributes *out)
{
    WITH_DEVICE(handle, device);
    NEED(out);
    struct mig_profile p;
    if (device.mig == WHOLE_GPU || !mig_profile_of(&device, device.mig, &p))
        return NVML_NOT_SUPPORTED;
    unsigned slices = mig_ci_slices_of(&device, device.mig);
    *out = (struct attributes){
        .sms = p.sms * slices / p.slices,
        .copy_engines = p.copy_engines,
        .decoders = p.decoders,
        .encoders = p.encoders,
        .jpegs = p.jpegs,
        .ofas = p.ofas,
        .gi_slices = p.slices,
        .ci_slices = slices,
        .memory_mb = p.memory_mb,
    };
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAttributes(nvml_device handle, struct attributes *out)
{
    return nvmlDeviceGetAttributes_v2(handle, out);
}
