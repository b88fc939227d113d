"""Calls of the NVML binding, with errors of our own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

_T = TypeVar("_T")


class NvmlError(Exception):
    """NVML returned an error, or no answer that can be used."""

    def __init__(self, message: str, value: int | None = None) -> None:
        super().__init__(message)
        # NVML's return code; None: it returned none.
        self.value = value
        self.gpu_is_lost: bool = value in (
            pynvml.NVML_ERROR_GPU_IS_LOST,
            pynvml.NVML_ERROR_RESET_REQUIRED,
        )
        self.not_found: bool = value in (
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
        )
        # Newer drivers remove functions that have a successor.
        self.missing: bool = value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        self.unsupported: bool = value in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        )
        self.denied: bool = value == pynvml.NVML_ERROR_NO_PERMISSION
        self.timed_out: bool = value == pynvml.NVML_ERROR_TIMEOUT
        # The driver was replaced, and this process keeps the old library until it exits.
        self.outdated: bool = value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


class DriverUnavailable(NvmlError):
    """The driver or its library cannot be used now."""


class DriverHangs(NvmlError):
    """A call has not returned in time, or an earlier one has not returned yet."""


class Nonsense(NvmlError):
    """NVML returned something that cannot be true."""


def call(function: Callable[..., _T], *args: Any) -> _T:
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        raise NvmlError(f"{function.__name__}: {error}", error.value) from error
    except UnicodeDecodeError as error:  # the binding decodes names
        raise Nonsense(f"{function.__name__}: {error.object!r} is not UTF-8") from error


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def address(raw: Any) -> int | None:
    return ctypes.cast(raw, ctypes.c_void_p).value


def sysfs_bus_id(bus_id: str) -> str:
    """NVML writes 00000000:3B:00.0 where the kernel has 0000:3b:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return bus_id.lower()
