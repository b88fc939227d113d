"""Reads files that may be replaced by something else: a pipe, a device, a very large file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_NULL_DEVICE = os.makedev(1, 3)


def read_regular_file(path: Path, most_bytes: int) -> bytes | None:
    """The first bytes of the file. The null device is an empty file.

    None if it is not a regular file: a pipe would block, and a device may never end.
    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not is_regular(os.fstat(descriptor)):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(descriptor)


def is_regular(found: os.stat_result) -> bool:
    is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL_DEVICE
    return stat.S_ISREG(found.st_mode) or is_null
