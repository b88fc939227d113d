/* Temperature, power, clocks, fans. */
#include "library.h"

NVML_API nvmlDeviceGetTemperature(nvml_device handle, unsigned sensor, unsigned *celsius)
{
    NEED(sensor == 0);
    return give_number(handle, "temperature", celsius);
}

NVML_API nvmlDeviceGetTemperatureV(nvml_device handle, struct temperature *out)
{
    NEED(out && out->sensor == 0);
    if (out->version != STRUCT_VERSION(struct temperature, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return give_number(handle, "temperature", (unsigned *)&out->celsius);
}

NVML_API nvmlDeviceGetTemperatureThreshold(nvml_device handle, unsigned threshold,
                                           unsigned *celsius)
{
    static const char *const keys[] = {"temperature.shutdown", "temperature.slowdown",
                                       "temperature.memory_max", "temperature.max"};
    NEED(threshold < 8);
    return threshold < 4 ? give_number(handle, keys[threshold], celsius) : NVML_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetPowerUsage(nvml_device handle, unsigned *milliwatt)
{
    return give_number(handle, "power.usage", milliwatt);
}

NVML_API nvmlDeviceGetPowerManagementLimit(nvml_device handle, unsigned *milliwatt)
{
    return give_number(handle, "power.limit", milliwatt);
}

NVML_API nvmlDeviceGetEnforcedPowerLimit(nvml_device handle, unsigned *milliwatt)
{
    return give_number(handle, "power.limit", milliwatt);
}

NVML_API nvmlDeviceGetPowerManagementDefaultLimit(nvml_device handle, unsigned *milliwatt)
{
    return give_number(handle, "power.default", milliwatt);
}

NVML_API nvmlDeviceGetPowerManagementLimitConstraints(nvml_device handle, unsigned *min,
                                                      unsigned *max)
{
    int status = give_number(handle, "power.min", min);
    return status == NVML_SUCCESS ? give_number(handle, "power.max", max) : status;
}

NVML_API nvmlDeviceGetTotalEnergyConsumption(nvml_device handle, u64 *millijoule)
{
    WITH_GPU(handle, device);
    NEED(millijoule);
    *millijoule = (u64)gpu_number(&device, "energy", 0);
    return gpu_arch(&device) >= ARCH_VOLTA ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

static const char *const clock_keys[] = {"clock.graphics", "clock.sm", "clock.memory",
                                         "clock.video"};
static const char *const max_clock_keys[] = {"clock.max.graphics", "clock.max.sm",
                                             "clock.max.memory", "clock.max.video"};

NVML_API nvmlDeviceGetClockInfo(nvml_device handle, unsigned type, unsigned *mhz)
{
    NEED(type < 4);
    return give_number(handle, clock_keys[type], mhz);
}

NVML_API nvmlDeviceGetMaxClockInfo(nvml_device handle, unsigned type, unsigned *mhz)
{
    NEED(type < 4);
    return give_number(handle, max_clock_keys[type], mhz);
}

NVML_API nvmlDeviceGetClock(nvml_device handle, unsigned type, unsigned id, unsigned *mhz)
{
    enum { CURRENT = 0, IDS = 4 };
    NEED(type < 4 && id < IDS);
    return give_number(handle, id == CURRENT ? clock_keys[type] : max_clock_keys[type], mhz);
}

NVML_API nvmlDeviceGetApplicationsClock(nvml_device handle, unsigned type, unsigned *mhz)
{
    return nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

NVML_API nvmlDeviceGetDefaultApplicationsClock(nvml_device handle, unsigned type, unsigned *mhz)
{
    return nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

NVML_API nvmlDeviceGetMaxCustomerBoostClock(nvml_device handle, unsigned type, unsigned *mhz)
{
    return nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

NVML_API nvmlDeviceGetPerformanceState(nvml_device handle, unsigned *state)
{
    return give_number(handle, "pstate", state);
}

NVML_API nvmlDeviceGetPowerState(nvml_device handle, unsigned *state)
{
    return give_number(handle, "pstate", state);
}

/* GPUs of servers have no fan, and their record does not have the key. */
NVML_API nvmlDeviceGetFanSpeed(nvml_device handle, unsigned *percent)
{
    return give_number(handle, "fan", percent);
}

NVML_API nvmlDeviceGetFanSpeed_v2(nvml_device handle, unsigned fan, unsigned *percent)
{
    NEED(fan == 0);
    return give_number(handle, "fan", percent);
}

NVML_API nvmlDeviceGetNumFans(nvml_device handle, unsigned *count)
{
    WITH_GPU(handle, device);
    NEED(count);
    *count = gpu_has(&device, "fan") ? 1 : 0;
    return NVML_SUCCESS;
}

static int give_reasons(nvml_device handle, u64 *reasons, u64 value)
{
    WITH_GPU(handle, device);
    NEED(reasons);
    *reasons = value;
    return NVML_SUCCESS;
}

enum { REASON_IDLE = 0x1, REASONS_SUPPORTED = 0x1FF };

NVML_API nvmlDeviceGetCurrentClocksEventReasons(nvml_device handle, u64 *reasons)
{
    return give_reasons(handle, reasons, REASON_IDLE);
}

NVML_API nvmlDeviceGetCurrentClocksThrottleReasons(nvml_device handle, u64 *reasons)
{
    return give_reasons(handle, reasons, REASON_IDLE);
}

NVML_API nvmlDeviceGetSupportedClocksEventReasons(nvml_device handle, u64 *reasons)
{
    return give_reasons(handle, reasons, REASONS_SUPPORTED);
}

NVML_API nvmlDeviceGetSupportedClocksThrottleReasons(nvml_device handle, u64 *reasons)
{
    return give_reasons(handle, reasons, REASONS_SUPPORTED);
}
