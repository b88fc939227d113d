"""Critical errors (XIDs) that the driver reports."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from gpuslice.gpus.nvml.calls import NvmlError, call
from gpuslice.gpus.nvml.gpu import GpuHandle

# NVML's instance id of an event that does not concern a MIG instance.
_NO_INSTANCE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error that the driver reports. `handle` is None if the GPU is not identified.

    Instances are None if the error is not limited to a MIG instance.
    """

    xid: int
    handle: GpuHandle | None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class XidEvents:
    """XID events of a set of GPUs."""

    def __init__(self) -> None:
        self._set = call(pynvml.nvmlEventSetCreate)
        self._handles: list[GpuHandle] = []

    def close(self) -> None:
        call(pynvml.nvmlEventSetFree, self._set)

    def register(self, handle: GpuHandle) -> bool:
        """Returns whether the GPU reports XIDs."""
        try:
            supported = call(pynvml.nvmlDeviceGetSupportedEventTypes, handle._raw)  # noqa: SLF001
            if not supported & pynvml.nvmlEventTypeXidCriticalError:
                return False
            self._subscribe(handle)
        except NvmlError as error:
            if error.unsupported:
                return False
            raise
        self._handles.append(handle)
        return True

    def _subscribe(self, handle: GpuHandle) -> None:
        call(
            pynvml.nvmlDeviceRegisterEvents,
            handle._raw,  # noqa: SLF001
            pynvml.nvmlEventTypeXidCriticalError,
            self._set,
        )

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """Waits for the next XID. None: timed out."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise NvmlError("nvmlEventSetWait", error) from error
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        owner = next((handle for handle in self._handles if handle.same_as(event.device)), None)
        return XidEvent(
            int(event.eventData),
            owner,
            _instance(event.gpuInstanceId),
            _instance(event.computeInstanceId),
        )


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)
