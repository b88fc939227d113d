/* Memory errors, row remapping, retired pages, recovery. */
#include <stdio.h>
#include <stdlib.h>

#include "health.h"
#include "library.h"

enum { CORRECTED = 0, UNCORRECTED = 1, VOLATILE = 0, AGGREGATE = 1 };
enum { LOCATION_DRAM = 2, LOCATION_SRAM = 7, LOCATION_COUNT = 8 };

static u64 ecc_count(const struct device *device, const char *where, int type, int counter)
{
    return (u64)sim_number(device->state, 0, "gpu.%d.ecc.%s%s.%s", device->gpu, where,
                           type == CORRECTED ? "corrected" : "uncorrected",
                           counter == VOLATILE ? "volatile" : "aggregate");
}

u64 ecc_dram(const struct device *device, int type, int counter)
{
    return ecc_count(device, "", type, counter);
}

u64 ecc_total(const struct device *device, int type, int counter)
{
    return ecc_count(device, "", type, counter) + ecc_count(device, "sram.", type, counter);
}

NVML_API nvmlDeviceGetEccMode(nvml_device handle, unsigned *current, unsigned *pending)
{
    WITH_GPU(handle, device);
    NEED(current && pending);
    if (!gpu_has(&device, "ecc.mode"))
        return NVML_NOT_SUPPORTED;
    *current = (unsigned)gpu_number(&device, "ecc.mode", 0);
    *pending = (unsigned)gpu_number(&device, "ecc.pending", *current);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDefaultEccMode(nvml_device handle, unsigned *mode)
{
    WITH_GPU(handle, device);
    NEED(mode);
    *mode = 1;
    return gpu_has(&device, "ecc.mode") ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

static int ecc_is_on(const struct device *device)
{
    return gpu_number(device, "ecc.mode", 0) == 1;
}

NVML_API nvmlDeviceGetTotalEccErrors(nvml_device handle, unsigned type, unsigned counter,
                                     u64 *count)
{
    WITH_GPU(handle, device);
    NEED(count && type <= UNCORRECTED && counter <= AGGREGATE);
    if (!ecc_is_on(&device))
        return NVML_NOT_SUPPORTED;
    *count = ecc_total(&device, (int)type, (int)counter);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryErrorCounter(nvml_device handle, unsigned type, unsigned counter,
                                         unsigned location, u64 *count)
{
    WITH_GPU(handle, device);
    NEED(count && type <= UNCORRECTED && counter <= AGGREGATE && location < LOCATION_COUNT);
    if (!ecc_is_on(&device))
        return NVML_NOT_SUPPORTED;
    if (location == LOCATION_DRAM)
        *count = ecc_count(&device, "", (int)type, (int)counter);
    else if (location == LOCATION_SRAM)
        *count = ecc_count(&device, "sram.", (int)type, (int)counter);
    else if (gpu_arch(&device) >= ARCH_AMPERE)
        return NVML_NOT_SUPPORTED; /* newer GPUs only distinguish DRAM and SRAM */
    else
        *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDetailedEccErrors(nvml_device handle, unsigned type, unsigned counter,
                                        struct ecc_counts *out)
{
    WITH_GPU(handle, device);
    NEED(out && type <= UNCORRECTED && counter <= AGGREGATE);
    if (!ecc_is_on(&device))
        return NVML_NOT_SUPPORTED;
    *out = (struct ecc_counts){.l2 = ecc_count(&device, "sram.", (int)type, (int)counter),
                               .memory = ecc_count(&device, "", (int)type, (int)counter)};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetSramEccErrorStatus(nvml_device handle, struct sram_ecc_status *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    if (!ecc_is_on(&device) || gpu_arch(&device) < ARCH_AMPERE)
        return NVML_NOT_SUPPORTED;
    if (out->version != STRUCT_VERSION(struct sram_ecc_status, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    u64 uncorrected = ecc_count(&device, "sram.", UNCORRECTED, AGGREGATE);
    *out = (struct sram_ecc_status){
        .version = out->version,
        .aggregate_secded = uncorrected,
        .aggregate_corrected = ecc_count(&device, "sram.", CORRECTED, AGGREGATE),
        .volatile_secded = ecc_count(&device, "sram.", UNCORRECTED, VOLATILE),
        .volatile_corrected = ecc_count(&device, "sram.", CORRECTED, VOLATILE),
        .l2 = uncorrected,
        .threshold_exceeded = (unsigned)gpu_number(&device, "ecc.sram.threshold", 0),
    };
    return NVML_SUCCESS;
}

static int has_row_remapping(const struct device *device)
{
    return gpu_arch(device) >= ARCH_AMPERE && gpu_has(device, "ecc.mode");
}

NVML_API nvmlDeviceGetRemappedRows(nvml_device handle, unsigned *corrected, unsigned *uncorrected,
                                   unsigned *pending, unsigned *failure)
{
    WITH_GPU(handle, device);
    NEED(corrected && uncorrected && pending && failure);
    if (!has_row_remapping(&device))
        return NVML_NOT_SUPPORTED;
    *corrected = (unsigned)gpu_number(&device, "remap.corrected", 0);
    *uncorrected = (unsigned)gpu_number(&device, "remap.uncorrected", 0);
    *pending = (unsigned)gpu_number(&device, "remap.pending", 0);
    *failure = (unsigned)gpu_number(&device, "remap.failure", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRemappedRows_v2(nvml_device handle, struct remapped_rows_v2 *out)
{
    NEED(out);
    *out = (struct remapped_rows_v2){0};
    return nvmlDeviceGetRemappedRows(handle, &out->corrected, &out->uncorrected, &out->pending,
                                     &out->failure);
}

NVML_API nvmlDeviceGetRowRemapperHistogram(nvml_device handle, struct remap_histogram *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    if (!has_row_remapping(&device))
        return NVML_NOT_SUPPORTED;
    *out = (struct remap_histogram){.max = 640};
    sscanf(gpu_text(&device, "remap.histogram"), "%u,%u,%u,%u,%u", &out->max, &out->high,
           &out->partial, &out->low, &out->none);
    return NVML_SUCCESS;
}

/* GPUs without row remapping have page retirement. */
static int has_page_retirement(const struct device *device)
{
    return gpu_arch(device) < ARCH_AMPERE && gpu_has(device, "ecc.mode");
}

NVML_API nvmlDeviceGetRetiredPagesPendingStatus(nvml_device handle, unsigned *pending)
{
    WITH_GPU(handle, device);
    NEED(pending);
    if (!has_page_retirement(&device))
        return NVML_NOT_SUPPORTED;
    *pending = (unsigned)gpu_number(&device, "retired.pending", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRetiredPages_v2(nvml_device handle, unsigned cause, unsigned *count,
                                      u64 *addresses, u64 *timestamps)
{
    WITH_GPU(handle, device);
    NEED(count && cause <= 1);
    if (!has_page_retirement(&device))
        return NVML_NOT_SUPPORTED;
    unsigned pages = (unsigned)gpu_number(&device, cause == 0 ? "retired.sbe" : "retired.dbe", 0);
    unsigned room = addresses ? *count : 0;
    *count = pages;
    if (room < pages)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned page = 0; page < pages; page++) {
        addresses[page] = 0x10000ull * (page + 1);
        if (timestamps)
            timestamps[page] = 0;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRetiredPages(nvml_device handle, unsigned cause, unsigned *count,
                                   u64 *addresses)
{
    return nvmlDeviceGetRetiredPages_v2(handle, cause, count, addresses, NULL);
}

NVML_API nvmlDeviceGetRepairStatus(nvml_device handle, struct repair_status *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    if (gpu_arch(&device) < ARCH_HOPPER || driver_branch(device.state) < 580)
        return NVML_NOT_SUPPORTED;
    if (out->version != STRUCT_VERSION(struct repair_status, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    out->channel_pending = (unsigned)gpu_number(&device, "repair.channel", 0);
    out->tpc_pending = (unsigned)gpu_number(&device, "repair.tpc", 0);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceValidateInforom(nvml_device handle)
{
    WITH_GPU(handle, device);
    return NVML_SUCCESS;
}
