"""The open driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Self

import pynvml

from gpuslice.gpus.nvml.calls import DriverHangs, DriverUnavailable, Nonsense, NvmlError
from gpuslice.gpus.nvml.gpu import GpuHandle
from gpuslice.gpus.nvml.limited_calls import LimitedCalls, SubjectCalls

# Each hang leaves one behind, and is rare.
_MOST_SESSIONS = 100
# The driver has that many minor numbers.
_MOST_GPUS = 256


class Nvml:
    """An open NVML session."""

    def __init__(self, calls: LimitedCalls) -> None:
        self._calls = calls
        self._call = calls.of(None)

    @classmethod
    def open(cls, library: Path | None = None, calls: LimitedCalls | None = None) -> Self:
        """`library` is the file of the library if the loader does not find it by name.

        Raises DriverUnavailable or DriverHangs.
        """
        session = cls(calls or LimitedCalls())
        if library is not None:
            # The binding loads the library by name, and gets this one if it is loaded already.
            _load(library)
        try:
            session._call.opening(pynvml.nvmlInit)
        except DriverHangs:
            raise
        except NvmlError as error:
            raise DriverUnavailable(str(error), error.value) from error
        return session

    def close(self) -> None:
        """Ends every session of the process: an nvmlInit that hung may have begun another one."""
        for _ in range(_MOST_SESSIONS):
            try:
                self._call(pynvml.nvmlShutdown)
            except NvmlError as error:
                if error.value == pynvml.NVML_ERROR_UNINITIALIZED:
                    return
                raise

    @property
    def driver_calls(self) -> SubjectCalls:
        """For calls about the driver as a whole."""
        return self._call

    def driver_version(self) -> str:
        return str(self._call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""
        version = int(self._call(pynvml.nvmlSystemGetCudaDriverVersion))
        return version // 1000, version % 1000 // 10

    def count(self) -> int:
        count = int(self._call(pynvml.nvmlDeviceGetCount))
        if count > _MOST_GPUS:
            raise Nonsense(f"the driver lists {count} GPUs")
        return count

    def gpu(self, index: int) -> GpuHandle:
        calls = self._calls.of(index)
        return GpuHandle(index, calls(pynvml.nvmlDeviceGetHandleByIndex, index), calls)


def _load(library: Path) -> None:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DriverUnavailable(f"cannot load {library}: {error}") from error
