"""Returns memory to the system that a large configuration needed for a moment."""

from __future__ import annotations

import ctypes
import gc


def return_free_memory() -> None:
    """Blocks for some milliseconds. Without it, a rejected file can cost as much memory for good as
    the whole agent: the C library keeps what threads have freed."""
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # not glibc
        return
    trim(ctypes.c_size_t(0))
