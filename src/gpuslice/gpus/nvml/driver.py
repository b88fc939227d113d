"""The open driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Self

import pynvml

from gpuslice.gpus.nvml.calls import DriverUnavailable, NvmlError, call
from gpuslice.gpus.nvml.gpu import GpuHandle


class Nvml:
    """An open NVML session."""

    @classmethod
    def open(cls, library: Path | None = None) -> Self:
        """`library` is the file of the library if the loader does not find it by name."""
        try:
            if library is not None:
                # The binding loads the library by name, and gets this one if it is loaded already.
                _load(library)
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
        return str(call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""
        version = int(call(pynvml.nvmlSystemGetCudaDriverVersion))
        return version // 1000, version % 1000 // 10

    def count(self) -> int:
        return int(call(pynvml.nvmlDeviceGetCount))

    def gpu(self, index: int) -> GpuHandle:
        return GpuHandle(index, call(pynvml.nvmlDeviceGetHandleByIndex, index))


def _load(library: Path) -> None:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        missing = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        raise DriverUnavailable(f"cannot load {library}: {error}", missing) from error
