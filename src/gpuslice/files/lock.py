"""Locks of directories that several processes write to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

# Whoever holds such a lock writes one small file.
LOCK_SECONDS = 3.0
_RETRY_SECONDS = 0.01


class LockHeld(OSError):
    """Another process holds the lock for too long. The message names it."""

    def __init__(self, directory: Path, seconds: float, holder: str) -> None:
        super().__init__(
            errno.ETIMEDOUT,
            f"another process holds a lock on the directory for more than {seconds:g} s: {holder}; "
            f"end it, or find it with `fuser -v {directory}`",
            str(directory),
        )


@contextlib.contextmanager
def locked_directory(directory: Path, seconds: float = LOCK_SECONDS) -> Iterator[int]:
    """Yields a descriptor of the directory. Blocks, up to the time limit. Raises LockHeld."""
    descriptor = _open(directory)
    try:
        deadline = time.monotonic() + seconds
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise LockHeld(directory, seconds, _holder(descriptor))
            time.sleep(_RETRY_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def lock_directory(
    directory: Path, waits: Callable[[LockHeld], None], seconds: float = LOCK_SECONDS
) -> AsyncIterator[None]:
    """Waits until the lock is free, and calls `waits` each time this many seconds have passed."""
    descriptor = _open(directory)
    try:
        clock = asyncio.get_running_loop().time
        report_at = clock() + seconds
        while not _try_lock(descriptor):
            if clock() > report_at:
                waits(LockHeld(directory, seconds, _holder(descriptor)))
                report_at = clock() + seconds
            await asyncio.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """From proc_locks(5): `1: FLOCK ADVISORY WRITE 7890 08:01:12345 0 EOF`."""
    inode = str(os.fstat(descriptor).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return f"process {fields[4]} ({_name(fields[4])})"
    return "unknown, perhaps in another container"


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "unknown"
