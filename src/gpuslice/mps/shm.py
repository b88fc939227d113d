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
    """Returns the directory. None: it is mounted already, and clients may use it."""
    directory = shm_directory(root)
    if is_mounted(directory, Path("/proc/self/mountinfo").read_text()):
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShmError(
            f"{directory} cannot be created ({error.strerror}): mount the host's MPS root at "
            f"{root}, writable"
        ) from error
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC | _RELATIME)
    options = f"size={size_kib(_meminfo())}k".encode()
    if libc.mount(b"shm", os.fsencode(directory), b"tmpfs", flags, options) != 0:
        raise ShmError(
            f"{directory} cannot be mounted ({os.strerror(ctypes.get_errno())}): run this "
            "container privileged"
        )
    return directory


def is_mounted(directory: Path, mountinfo: str) -> bool:
    """mountinfo escapes special characters; the directories of MPS have none."""
    return any(line.split()[4:5] == [str(directory)] for line in mountinfo.splitlines())


def size_kib(meminfo: str) -> int:
    """Half of the memory, the default of /dev/shm."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) // 2 if found else _FALLBACK_KIB


def _meminfo() -> str:
    try:
        return Path("/proc/meminfo").read_text()
    except OSError:
        return ""
