"""Calls of the NVML binding, with errors of our own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

_T = TypeVar("_T")


class NvmlError(Exception):
    """NVML returned an error."""

    def __init__(self, call: str, error: pynvml.NVMLError) -> None:
        super().__init__(f"{call}: {error}")
        self.gpu_is_lost: bool = error.value in (
            pynvml.NVML_ERROR_GPU_IS_LOST,
            pynvml.NVML_ERROR_RESET_REQUIRED,
        )
        self.not_found: bool = error.value in (
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
        )
        # Newer drivers remove functions that have a successor.
        self.missing: bool = error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        self.unsupported: bool = error.value in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        )


class DriverUnavailable(NvmlError):
    """The driver or its library cannot be used now."""

    def __init__(self, call: str, error: pynvml.NVMLError) -> None:
        super().__init__(call, error)
        # The driver was replaced, and this process keeps the old library until it exits.
        self.outdated: bool = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


def call(function: Callable[..., _T], *args: Any) -> _T:
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        raise NvmlError(function.__name__, error) from error


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def address(raw: Any) -> int | None:
    return ctypes.cast(raw, ctypes.c_void_p).value


def sysfs_bus_id(bus_id: str) -> str:
    """NVML writes 00000000:3B:00.0 where the kernel has 0000:3b:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return bus_id.lower()
