/* Enumerates GPUs and returns their handles. */
#include <stdio.h>
#include <string.h>

#include "library.h"

NVML_API nvmlDeviceGetCount_v2(unsigned *count)
{
    WITH_LIBRARY(state);
    NEED(count);
    *count = (unsigned)library_count();
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static int give_handle(const struct sim_state *state, int gpu, nvml_device *handle)
{
    int status = gpu_status(state, gpu);
    if (status == NVML_SUCCESS)
        *handle = library_by_gpu(gpu);
    return status;
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *handle)
{
    WITH_LIBRARY(state);
    NEED(handle && index < (unsigned)library_count());
    return give_handle(state, library_gpu_at((int)index), handle);
}

NVML_API nvmlDeviceGetHandleByIndex(unsigned index, nvml_device *handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

static int by_uuid(const struct sim_state *state, const char *uuid, nvml_device *handle)
{
    int gpu = sim_gpu_by_uuid(state, uuid);
    if (gpu >= 0)
        return library_index_of(gpu) < 0 ? NVML_NOT_FOUND : give_handle(state, gpu, handle);
    int mig;
    gpu = sim_mig_by_uuid(state, uuid, &mig);
    if (gpu < 0 || library_index_of(gpu) < 0)
        return NVML_NOT_FOUND;
    int status = gpu_status(state, gpu);
    if (status != NVML_SUCCESS)
        return status;
    *handle = library_mig_handle(gpu, uuid);
    return *handle ? NVML_SUCCESS : NVML_MEMORY;
}

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *handle)
{
    WITH_LIBRARY(state);
    NEED(uuid && handle);
    return by_uuid(state, uuid, handle);
}

NVML_API nvmlDeviceGetHandleByUUIDV(const struct uuid_argument *uuid, nvml_device *handle)
{
    WITH_LIBRARY(state);
    NEED(uuid && handle);
    if (uuid->version != STRUCT_VERSION(struct uuid_argument, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    enum { TEXT = 1, BINARY = 2 };
    char text[48];
    const unsigned char *b = uuid->value.bytes;
    if (uuid->type == TEXT)
        snprintf(text, sizeof text, "%.*s", (int)sizeof uuid->value.text, uuid->value.text);
    else if (uuid->type == BINARY)
        snprintf(text, sizeof text,
                 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                 b[14], b[15]);
    else
        return NVML_INVALID_ARGUMENT;
    return by_uuid(state, text, handle);
}

NVML_API nvmlDeviceGetHandleBySerial(const char *serial, nvml_device *handle)
{
    WITH_LIBRARY(state);
    NEED(serial && handle);
    for (int index = 0; index < library_count(); index++) {
        int gpu = library_gpu_at(index);
        if (strcmp(serial, sim_text(state, "", "gpu.%d.serial", gpu)) == 0)
            return give_handle(state, gpu, handle);
    }
    return NVML_NOT_FOUND;
}

/* Accepts the forms of all NVML versions: 00000000:3B:00.0, 0000:3b:00.0, 3B:00.0. */
static int parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device)
{
    if (sscanf(text, "%x:%x:%x", domain, bus, device) == 3)
        return 1;
    *domain = 0;
    return sscanf(text, "%x:%x", bus, device) == 2;
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *handle)
{
    WITH_LIBRARY(state);
    unsigned wanted[3], own[3];
    NEED(bus_id && handle && parse_bus_id(bus_id, &wanted[0], &wanted[1], &wanted[2]));
    for (int index = 0; index < library_count(); index++) {
        int gpu = library_gpu_at(index);
        const char *pci = sim_text(state, "", "gpu.%d.pci", gpu);
        if (parse_bus_id(pci, &own[0], &own[1], &own[2]) && memcmp(wanted, own, sizeof own) == 0)
            return give_handle(state, gpu, handle);
    }
    return NVML_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvml_device *handle)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}
