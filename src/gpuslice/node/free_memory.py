"""Keeps the memory of a daemon as small as what it uses.

The C library has a heap for each of many threads, and keeps what threads have freed. A large
configuration that is rejected would cost as much memory for good as the whole agent.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

# Of malloc.h: the largest number of heaps.
_M_ARENA_MAX = -8
_HEAPS = 2


def share_heaps() -> None:
    """Threads share few heaps. Call it before they start."""
    if (mallopt := _function("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, _HEAPS)


def return_free_memory() -> None:
    """Returns what is free to the system. Blocks for some milliseconds."""
    gc.collect()
    if (trim := _function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))


def _function(name: str) -> Callable[..., int] | None:
    """None: the C library is not glibc."""
    return getattr(ctypes.CDLL(None), name, None)
