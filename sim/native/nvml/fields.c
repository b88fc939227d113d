/* nvmlDeviceGetFieldValues: several numbered values in one call. */
#include <time.h>

#include "health.h"
#include "library.h"

enum {
    RECOVERY_ACTION_SINCE_BRANCH = 565,

    FIELD_ECC_CURRENT = 1,
    FIELD_ECC_PENDING = 2,
    FIELD_ECC_TOTALS = 3, /* 3..6: single/double bit, volatile then aggregate */
    FIELD_ECC_SBE_VOLATILE_MEMORY = 11,
    FIELD_ECC_DBE_VOLATILE_MEMORY = 12,
    FIELD_ECC_SBE_AGGREGATE_MEMORY = 22,
    FIELD_ECC_DBE_AGGREGATE_MEMORY = 23,
    FIELD_RETIRED_SBE = 29,
    FIELD_RETIRED_DBE = 30,
    FIELD_RETIRED_PENDING = 31,
    FIELD_MEMORY_TEMPERATURE = 82,
    FIELD_ENERGY = 83,
    FIELD_NVLINK_SPEED = 90,
    FIELD_NVLINK_COUNT = 91,
    FIELD_PCIE_REPLAYS = 94,
    FIELD_REMAPPED_CORRECTED = 142,
    FIELD_REMAPPED_UNCORRECTED = 143,
    FIELD_REMAPPED_PENDING = 144,
    FIELD_REMAPPED_FAILURE = 145,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_POWER_MIN = 187,
    FIELD_POWER_MAX = 188,
    FIELD_POWER_DEFAULT = 189,
    FIELD_POWER_CURRENT = 190,
    FIELD_RECOVERY_ACTION = 230,
};

/* Fields with the value of one key of the record. */
static const struct {
    unsigned field;
    const char *key;
    int value_type;
} simple[] = {
    {FIELD_ECC_CURRENT, "ecc.mode", VALUE_UNSIGNED_INT},
    {FIELD_ECC_PENDING, "ecc.pending", VALUE_UNSIGNED_INT},
    {FIELD_RETIRED_SBE, "retired.sbe", VALUE_UNSIGNED_INT},
    {FIELD_RETIRED_DBE, "retired.dbe", VALUE_UNSIGNED_INT},
    {FIELD_RETIRED_PENDING, "retired.pending", VALUE_UNSIGNED_INT},
    {FIELD_MEMORY_TEMPERATURE, "temperature.memory", VALUE_UNSIGNED_INT},
    {FIELD_ENERGY, "energy", VALUE_UNSIGNED_LONG_LONG},
    {FIELD_NVLINK_SPEED, "nvlink.speed", VALUE_UNSIGNED_INT},
    {FIELD_NVLINK_COUNT, "nvlink.count", VALUE_UNSIGNED_INT},
    {FIELD_PCIE_REPLAYS, "pcie.replays", VALUE_UNSIGNED_LONG_LONG},
    {FIELD_REMAPPED_CORRECTED, "remap.corrected", VALUE_UNSIGNED_INT},
    {FIELD_REMAPPED_UNCORRECTED, "remap.uncorrected", VALUE_UNSIGNED_INT},
    {FIELD_REMAPPED_PENDING, "remap.pending", VALUE_UNSIGNED_INT},
    {FIELD_REMAPPED_FAILURE, "remap.failure", VALUE_UNSIGNED_INT},
    {FIELD_POWER_AVERAGE, "power.usage", VALUE_UNSIGNED_INT},
    {FIELD_POWER_INSTANT, "power.usage", VALUE_UNSIGNED_INT},
    {FIELD_POWER_MIN, "power.min", VALUE_UNSIGNED_INT},
    {FIELD_POWER_MAX, "power.max", VALUE_UNSIGNED_INT},
    {FIELD_POWER_DEFAULT, "power.default", VALUE_UNSIGNED_INT},
    {FIELD_POWER_CURRENT, "power.limit", VALUE_UNSIGNED_INT},
};

static int give(struct field_value *value, int value_type, u64 number)
{
    value->value_type = value_type;
    value->value.unsigned_long_long = 0;
    if (value_type == VALUE_UNSIGNED_INT)
        value->value.unsigned_int = (unsigned)number;
    else
        value->value.unsigned_long_long = number;
    return NVML_SUCCESS;
}

static int give_ecc(const struct device *device, struct field_value *value, u64 count)
{
    if (!gpu_number(device, "ecc.mode", 0))
        return NVML_NOT_SUPPORTED;
    return give(value, VALUE_UNSIGNED_LONG_LONG, count);
}

static int give_simple(const struct device *device, struct field_value *value)
{
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (simple[i].field == value->field && gpu_has(device, simple[i].key))
            return give(value, simple[i].value_type, (u64)gpu_number(device, simple[i].key, 0));
    return NVML_NOT_SUPPORTED;
}

static int give_field(const struct device *device, struct field_value *value)
{
    switch (value->field) {
    case FIELD_ECC_TOTALS:
    case FIELD_ECC_TOTALS + 1:
    case FIELD_ECC_TOTALS + 2:
    case FIELD_ECC_TOTALS + 3: {
        int offset = (int)value->field - FIELD_ECC_TOTALS;
        return give_ecc(device, value, ecc_total(device, offset % 2, offset / 2));
    }
    case FIELD_ECC_SBE_VOLATILE_MEMORY:
        return give_ecc(device, value, ecc_dram(device, 0, 0));
    case FIELD_ECC_DBE_VOLATILE_MEMORY:
        return give_ecc(device, value, ecc_dram(device, 1, 0));
    case FIELD_ECC_SBE_AGGREGATE_MEMORY:
        return give_ecc(device, value, ecc_dram(device, 0, 1));
    case FIELD_ECC_DBE_AGGREGATE_MEMORY:
        return give_ecc(device, value, ecc_dram(device, 1, 1));
    case FIELD_RECOVERY_ACTION:
        if (driver_branch(device->state) < RECOVERY_ACTION_SINCE_BRANCH)
            return NVML_NOT_SUPPORTED;
        return give(value, VALUE_UNSIGNED_INT, (u64)gpu_number(device, "recovery_action", 0));
    default:
        return give_simple(device, value);
    }
}

NVML_API nvmlDeviceGetFieldValues(nvml_device handle, int count, struct field_value *values)
{
    WITH_GPU(handle, device);
    NEED(values && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp_us = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
        values[i].latency_us = 0;
        values[i].status = give_field(&device, &values[i]);
    }
    return NVML_SUCCESS;
}
