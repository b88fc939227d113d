"""The NVML library behind a typed face: the only module that touches the binding.

Every method blocks and none may run while another thread opens or closes the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pynvml

_T = TypeVar("_T")
_MIB = 1024 * 1024


class NvmlError(Exception):
    """NVML answered with an error."""

    def __init__(self, call: str, error: pynvml.NVMLError) -> None:
        super().__init__(f"{call}: {error}")
        self.gpu_is_lost: bool = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
        self.unsupported: bool = error.value in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        )


class DriverUnavailable(NvmlError):
    """There is no driver to talk to (yet)."""


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """A GPU that NVML enumerates."""

    index: int
    _raw: Any

    def uuid(self) -> str:
        return str(_call(pynvml.nvmlDeviceGetUUID, self._raw))

    def minor(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetMinorNumber, self._raw))

    def name(self) -> str:
        return str(_call(pynvml.nvmlDeviceGetName, self._raw))

    def memory_mib(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetMemoryInfo, self._raw).total) // _MIB

    def compute_capability(self) -> tuple[int, int]:
        major, minor = _call(pynvml.nvmlDeviceGetCudaComputeCapability, self._raw)
        return int(major), int(minor)

    def mig_enabled(self) -> bool:
        try:
            current, _pending = _call(pynvml.nvmlDeviceGetMigMode, self._raw)
        except NvmlError as error:
            if error.unsupported:
                return False
            raise
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)

    def exclusive_process(self) -> bool:
        mode = _call(pynvml.nvmlDeviceGetComputeMode, self._raw)
        return bool(mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    def same_as(self, raw: Any) -> bool:
        return _address(self._raw) == _address(raw)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error that the driver reports. `handle` is None if it does not say of whom."""

    xid: int
    handle: GpuHandle | None


class Nvml:
    """An open driver."""

    @classmethod
    def open(cls) -> Self:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverUnavailable("nvmlInit", error) from error
        return cls()

    def close(self) -> None:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise NvmlError("nvmlShutdown", error) from error

    def driver_version(self) -> str:
        return str(_call(pynvml.nvmlSystemGetDriverVersion))

    def count(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetCount))

    def gpu(self, index: int) -> GpuHandle:
        return GpuHandle(index, _call(pynvml.nvmlDeviceGetHandleByIndex, index))


class XidEvents:
    """XID events of a set of GPUs."""

    def __init__(self) -> None:
        self._set = _call(pynvml.nvmlEventSetCreate)
        self._handles: list[GpuHandle] = []

    def close(self) -> None:
        _call(pynvml.nvmlEventSetFree, self._set)

    def register(self, handle: GpuHandle) -> None:
        _call(
            pynvml.nvmlDeviceRegisterEvents,
            handle._raw,  # noqa: SLF001
            pynvml.nvmlEventTypeXidCriticalError,
            self._set,
        )
        self._handles.append(handle)

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """Blocks for the next XID; None when the time is over."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise NvmlError("nvmlEventSetWait", error) from error
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        owner = next((handle for handle in self._handles if handle.same_as(event.device)), None)
        return XidEvent(int(event.eventData), owner)


def _call(function: Callable[..., _T], *args: Any) -> _T:
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        raise NvmlError(function.__name__, error) from error


def _address(raw: Any) -> int | None:
    return ctypes.cast(raw, ctypes.c_void_p).value
