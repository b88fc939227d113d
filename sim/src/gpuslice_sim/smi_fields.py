"""The fields of nvidia-smi queries, and how they are printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

# NVML objects are untyped. The arguments of a getter are a GPU, or a GPU and a process.
Getter = Callable[..., object]


@dataclass(frozen=True)
class Field:
    get: Getter
    unit: str = ""

    def show(self, subject: tuple[Any, ...], *, units: bool) -> str:
        try:
            value = self.get(*subject)
        except pynvml.NVMLError_NotSupported:
            return "[N/A]"
        except pynvml.NVMLError as error:
            return f"[{error}]"
        return f"{value} {self.unit}" if self.unit and units else str(value)


Fields = Mapping[str, Field]


def _mib(size: int) -> int:
    return size >> 20


def _on(mode: int) -> str:
    return "Enabled" if mode else "Disabled"


def _watt(milliwatt: int) -> str:
    return f"{milliwatt / 1000:.2f}"


def _memory(handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def _compute_mode(handle: Any) -> str:
    names = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
    return names.get(pynvml.nvmlDeviceGetComputeMode(handle), "Unknown")


def _capability(handle: Any) -> str:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _ecc(kind: int, counter: int) -> Getter:
    return lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter)


def _clock(kind: int) -> Getter:
    return lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, kind)


def _max_clock(kind: int) -> Getter:
    return lambda handle: pynvml.nvmlDeviceGetMaxClockInfo(handle, kind)


def _retired_pending(handle: Any) -> str:
    return "Yes" if pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) else "No"


GPU: Fields = {
    "timestamp": Field(lambda handle: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": Field(lambda handle: pynvml.nvmlSystemGetDriverVersion()),
    "count": Field(lambda handle: pynvml.nvmlDeviceGetCount()),
    "index": Field(pynvml.nvmlDeviceGetIndex),
    "name": Field(pynvml.nvmlDeviceGetName),
    "gpu_name": Field(pynvml.nvmlDeviceGetName),
    "uuid": Field(pynvml.nvmlDeviceGetUUID),
    "gpu_uuid": Field(pynvml.nvmlDeviceGetUUID),
    "serial": Field(pynvml.nvmlDeviceGetSerial),
    "gpu_serial": Field(pynvml.nvmlDeviceGetSerial),
    "vbios_version": Field(pynvml.nvmlDeviceGetVbiosVersion),
    "pci.bus_id": Field(lambda handle: pynvml.nvmlDeviceGetPciInfo(handle).busId),
    "gpu_bus_id": Field(lambda handle: pynvml.nvmlDeviceGetPciInfo(handle).busId),
    "pci.domain": Field(lambda handle: f"{pynvml.nvmlDeviceGetPciInfo(handle).domain:#06X}"),
    "pci.bus": Field(lambda handle: f"{pynvml.nvmlDeviceGetPciInfo(handle).bus:#04X}"),
    "pci.device": Field(lambda handle: f"{pynvml.nvmlDeviceGetPciInfo(handle).device:#04X}"),
    "pci.device_id": Field(
        lambda handle: f"0x{pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId:08X}"
    ),
    "pci.sub_device_id": Field(
        lambda handle: f"0x{pynvml.nvmlDeviceGetPciInfo(handle).pciSubSystemId:08X}"
    ),
    "pcie.link.gen.current": Field(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
    "pcie.link.gen.max": Field(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
    "pcie.link.width.current": Field(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
    "pcie.link.width.max": Field(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
    "compute_cap": Field(_capability),
    "compute_mode": Field(_compute_mode),
    "persistence_mode": Field(lambda handle: _on(pynvml.nvmlDeviceGetPersistenceMode(handle))),
    "pstate": Field(lambda handle: f"P{pynvml.nvmlDeviceGetPerformanceState(handle)}"),
    "memory.total": Field(lambda handle: _mib(_memory(handle).total), "MiB"),
    "memory.reserved": Field(lambda handle: _mib(_memory(handle).reserved), "MiB"),
    "memory.used": Field(lambda handle: _mib(_memory(handle).used), "MiB"),
    "memory.free": Field(lambda handle: _mib(_memory(handle).free), "MiB"),
    "utilization.gpu": Field(lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, "%"),
    "utilization.memory": Field(
        lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).memory, "%"
    ),
    "temperature.gpu": Field(lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0)),
    "fan.speed": Field(pynvml.nvmlDeviceGetFanSpeed, "%"),
    "power.draw": Field(lambda handle: _watt(pynvml.nvmlDeviceGetPowerUsage(handle)), "W"),
    "power.limit": Field(
        lambda handle: _watt(pynvml.nvmlDeviceGetPowerManagementLimit(handle)), "W"
    ),
    "power.default_limit": Field(
        lambda handle: _watt(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)), "W"
    ),
    "clocks.gr": Field(_clock(0), "MHz"),
    "clocks.sm": Field(_clock(1), "MHz"),
    "clocks.mem": Field(_clock(2), "MHz"),
    "clocks.max.gr": Field(_max_clock(0), "MHz"),
    "clocks.max.sm": Field(_max_clock(1), "MHz"),
    "clocks.max.mem": Field(_max_clock(2), "MHz"),
    "ecc.mode.current": Field(lambda handle: _on(pynvml.nvmlDeviceGetEccMode(handle)[0])),
    "ecc.mode.pending": Field(lambda handle: _on(pynvml.nvmlDeviceGetEccMode(handle)[1])),
    "ecc.errors.corrected.volatile.total": Field(_ecc(0, 0)),
    "ecc.errors.corrected.aggregate.total": Field(_ecc(0, 1)),
    "ecc.errors.uncorrected.volatile.total": Field(_ecc(1, 0)),
    "ecc.errors.uncorrected.aggregate.total": Field(_ecc(1, 1)),
    "retired_pages.pending": Field(_retired_pending),
    "mig.mode.current": Field(lambda handle: _on(pynvml.nvmlDeviceGetMigMode(handle)[0])),
    "mig.mode.pending": Field(lambda handle: _on(pynvml.nvmlDeviceGetMigMode(handle)[1])),
}


def _process_name(handle: Any, app: Any) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(app.pid))
    except pynvml.NVMLError:
        return "[Not Found]"


APPS: Fields = {
    "timestamp": Field(lambda handle, app: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "gpu_name": Field(lambda handle, app: pynvml.nvmlDeviceGetName(handle)),
    "gpu_uuid": Field(lambda handle, app: pynvml.nvmlDeviceGetUUID(handle)),
    "gpu_serial": Field(lambda handle, app: pynvml.nvmlDeviceGetSerial(handle)),
    "gpu_bus_id": Field(lambda handle, app: pynvml.nvmlDeviceGetPciInfo(handle).busId),
    "pid": Field(lambda handle, app: app.pid),
    "process_name": Field(_process_name),
    "name": Field(_process_name),
    "used_gpu_memory": Field(lambda handle, app: _mib(app.usedGpuMemory), "MiB"),
    "used_memory": Field(lambda handle, app: _mib(app.usedGpuMemory), "MiB"),
}
