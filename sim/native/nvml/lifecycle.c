/* Initialisation, shutdown, versions and error texts. */
#include <stdio.h>

#include "library.h"

NVML_API nvmlInitWithFlags(unsigned flags)
{
    (void)flags; /* NO_GPUS and NO_ATTACH: both have no effect here */
    return library_init();
}

NVML_API nvmlInit_v2(void)
{
    return library_init();
}

NVML_API nvmlInit(void)
{
    return library_init();
}

NVML_API nvmlShutdown(void)
{
    return library_shutdown();
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "GPU access blocked by the operating system",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No data",
        "Not supported with ECC enabled on vGPU host",
        "Insufficient resources",
        "Frequency not supported",
        "Argument version mismatch",
        "Deprecated",
        "Not ready",
        "GPU not found",
        "Invalid state",
        "Reset type not supported",
    };
    int known = (int)(sizeof texts / sizeof *texts);
    return code >= 0 && code < known ? texts[code] : "Unknown Error";
}

static int give_system_text(const char *key, char *out, unsigned length)
{
    WITH_LIBRARY(state);
    return give_text(sim_text(state, "", "%s", key), out, length);
}

NVML_API nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return give_system_text("driver.version", version, length);
}

NVML_API nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return give_system_text("driver.nvml", version, length);
}

/* The CUDA version is that of libcuda, so the call also works before nvmlInit. */
NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    HOLD_LOCK;
    struct sim_state *state;
    NEED(version);
    int status = library_enter_uninitialized(&held_, &state);
    if (status != NVML_SUCCESS)
        return status;
    *version = (int)sim_number(state, 0, "driver.cuda");
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API nvmlSystemGetDriverBranch(struct driver_branch *info, unsigned length)
{
    WITH_LIBRARY(state);
    NEED(info);
    if (info->version != STRUCT_VERSION(struct driver_branch, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    char branch[32];
    snprintf(branch, sizeof branch, "r%d_00", driver_branch(state));
    return give_text(branch, info->branch, length < VERSION_SIZE ? length : VERSION_SIZE);
}

NVML_API nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    WITH_LIBRARY(state);
    NEED(name && length > 0);
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0'; /* the arguments follow after a NUL */
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

NVML_API nvmlUnitGetCount(unsigned *count)
{
    WITH_LIBRARY(state);
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlGetExcludedDeviceCount(unsigned *count)
{
    return nvmlUnitGetCount(count);
}

NVML_API nvmlGetBlacklistDeviceCount(unsigned *count)
{
    return nvmlUnitGetCount(count);
}
