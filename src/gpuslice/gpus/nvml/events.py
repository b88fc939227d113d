"""Critical errors (XIDs) that the driver reports."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pynvml

from gpuslice.gpus.nvml.calls import NvmlError
from gpuslice.gpus.nvml.driver import Nvml
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

    def __init__(self, nvml: Nvml) -> None:
        self._call = nvml.driver_calls
        self._set = self._call(pynvml.nvmlEventSetCreate)
        self._handles: list[GpuHandle] = []
        # Also events of a wait that returned too late.
        self._received: SimpleQueue[Any] = SimpleQueue()

    def close(self) -> None:
        self._call(pynvml.nvmlEventSetFree, self._set)

    def register(self, handle: GpuHandle) -> bool:
        """Returns whether the GPU reports XIDs."""
        try:
            supported = handle._call(pynvml.nvmlDeviceGetSupportedEventTypes, handle._raw)  # noqa: SLF001
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
        handle._call(  # noqa: SLF001
            pynvml.nvmlDeviceRegisterEvents,
            handle._raw,  # noqa: SLF001
            pynvml.nvmlEventTypeXidCriticalError,
            self._set,
        )

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """Waits for the next XID. None: timed out."""
        if self._received.empty():
            self._receive(timeout_ms)
        if self._received.empty():
            return None
        event = self._received.get()
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        owner = next((handle for handle in self._handles if handle.same_as(event.device)), None)
        return XidEvent(
            int(event.eventData),
            owner,
            _instance(event.gpuInstanceId),
            _instance(event.computeInstanceId),
        )

    def _receive(self, timeout_ms: int) -> None:
        def nvmlEventSetWait() -> None:  # noqa: N802 (errors name the call)
            self._received.put(pynvml.nvmlEventSetWait_v2(self._set, timeout_ms))

        try:
            self._call(nvmlEventSetWait, longer_seconds=timeout_ms / 1000)
        except NvmlError as error:
            if not error.timed_out:
                raise


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)
