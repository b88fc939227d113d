"""The shared memory of the node's MPS daemons and their clients."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from gpuslice.mps.daemon_paths import ROOT, shm_directory

_FALLBACK_KIB = 65536
_NOSUID, _NODEV, _NOEXEC, _RELATIME = 2, 4, 8, 1 << 21


class ShmError(Exception):
    """It cannot be mounted; the message states the remedy."""


def mount_shm(root: Path = ROOT) -> Path | None:
    """Returns the directory. None: it is mounted already and stays, because clients use it."""
    place = shm_directory(root)
    if is_mounted(place, Path("/proc/self/mountinfo").read_text()):
        return None
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShmError(
            f"{place} cannot be created ({error.strerror}): mount the host's MPS root at {root}, "
            "writable"
        ) from error
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC | _RELATIME)
    options = f"size={size_kib(_meminfo())}k".encode()
    if libc.mount(b"shm", os.fsencode(place), b"tmpfs", flags, options) != 0:
        raise ShmError(
            f"{place} cannot be mounted ({os.strerror(ctypes.get_errno())}): run this container "
            "privileged"
        )
    return place


def is_mounted(place: Path, mountinfo: str) -> bool:
    """Special characters are escaped there; the directories of MPS have none."""
    return any(line.split()[4:5] == [str(place)] for line in mountinfo.splitlines())


def size_kib(meminfo: str) -> int:
    """Half of the memory, the default of /dev/shm."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) // 2 if found else _FALLBACK_KIB


def _meminfo() -> str:
    try:
        return Path("/proc/meminfo").read_text()
    except OSError:
        return ""
