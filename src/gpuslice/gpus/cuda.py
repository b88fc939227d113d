"""Reads GPUs from the CUDA driver, for machines without NVML (Tegra)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from gpuslice.slicing.gpu import Gpu

_LIBRARY = "libcuda.so.1"
_MIB = 1024 * 1024
_NAME_SIZE = 256
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_MAJOR, _MINOR = 75, 76


class CudaError(Exception):
    """The CUDA driver is missing or returned an error."""


def cuda_version() -> tuple[int, int]:
    version = ctypes.c_int()
    _call(_load(), "cuDriverGetVersion", ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def cuda_gpus(uuid: str) -> tuple[Gpu, ...]:
    """These GPUs have no UUID of their own. All of them get `uuid`."""
    library = _load()
    _call(library, "cuInit", 0)
    count = ctypes.c_int()
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    return tuple(_gpus(library, count.value, uuid))


def _gpus(library: ctypes.CDLL, count: int, uuid: str) -> Iterator[Gpu]:
    for index in range(count):
        device = ctypes.c_int()
        _call(library, "cuDeviceGet", ctypes.byref(device), index)
        name = ctypes.create_string_buffer(_NAME_SIZE)
        _call(library, "cuDeviceGetName", name, _NAME_SIZE, device)
        memory = ctypes.c_size_t()
        _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        yield Gpu(
            uuid=uuid,
            index=index,
            minor=index,
            name=name.value.decode("utf-8", "replace"),
            memory_mib=memory.value // _MIB,
            compute_capability=(
                _attribute(library, device, _MAJOR),
                _attribute(library, device, _MINOR),
            ),
        )


def _attribute(library: ctypes.CDLL, device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int()
    _call(library, "cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaError(f"{_LIBRARY} cannot be loaded ({error})") from error


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        code = int(getattr(library, name)(*arguments))
    except AttributeError as error:
        raise CudaError(f"{_LIBRARY} has no {name}") from error
    if code:
        raise CudaError(f"{name}: error {code}")
