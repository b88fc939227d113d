"""The shared memory of MPS daemons and their clients: a private, bounded tmpfs per daemon."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from gpuslice.files.untrusted import remove_tree
from gpuslice.mps.daemon_paths import ROOT, SHM, DaemonPaths, shm_directory
from gpuslice.mps.mounts import MountFlag, MountPoint, mount, mount_of, mount_points, unmount

_FALLBACK_KIB = 65536
_SMALLEST_KIB = 65536
# Files cost memory of the kernel in addition to their contents.
_MAX_FILES = 65536
_FLAGS = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC | MountFlag.RELATIME
# As /dev/shm: every user may create files, and may remove only their own.
_MODE = 0o1777


class ShmError(Exception):
    """It cannot be mounted; the message states the remedy."""


def mount_shm(root: Path = ROOT) -> Path | None:
    """The one for the node, for NVIDIA's layout. None: it is mounted already and may be in use."""
    directory = shm_directory(root)
    if is_mounted(directory, mount_points()):
        return None
    _make_directory(directory, root)
    _mount_tmpfs(directory, size_kib(_meminfo()))
    return directory


def prepare_shm(paths: DaemonPaths, daemons: int) -> bool:
    """Creates the one of a daemon, unless it is there. Returns whether its size is bounded.

    It outlives the daemon, because containers that use it go on. A tmpfs is mounted only if it also
    appears on the host, where containers get it from; otherwise daemon and containers share the
    directory itself. `daemons`: how many share the memory of the node.
    """
    directory = paths.shm
    points = mount_points()
    if is_mounted(directory, points):
        return True
    _make_directory(directory, paths.root)
    parent = mount_of(directory, points)
    if parent is None or not parent.is_shared:
        directory.chmod(_MODE)
        return False
    _mount_tmpfs(directory, max(size_kib(_meminfo()) // max(daemons, 1), _SMALLEST_KIB))
    return True


def remove_shm(paths: DaemonPaths) -> None:
    """Containers that still use it keep it. Raises OSError."""
    directory = paths.shm
    for point in mount_points():
        if point.path == directory:
            unmount(directory)
    if directory.is_dir():
        remove_tree(directory)
    with contextlib.suppress(OSError):  # pipe and log directories stay
        directory.parent.rmdir()


def unused_shm(root: Path, wanted: Collection[str]) -> list[str]:
    """Daemons that are not wanted and whose shared memory a killed program left behind."""
    # Two levels below the root, after a resource, or one level, after a GPU.
    patterns = (f"*/*/{SHM}", f"GPU-*/{SHM}")
    found = [
        str(path.parent.relative_to(root)) for pattern in patterns for path in root.glob(pattern)
    ]
    return sorted(set(found).difference(wanted))


def is_mounted(directory: Path, points: Collection[MountPoint]) -> bool:
    return any(point.path == directory for point in points)


def size_kib(meminfo: str) -> int:
    """Half of the memory, the default of /dev/shm."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) // 2 if found else _FALLBACK_KIB


def _make_directory(directory: Path, root: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShmError(
            f"{directory} cannot be created ({error.strerror}): mount the host's MPS root at "
            f"{root}, writable"
        ) from error


def _mount_tmpfs(directory: Path, kib: int) -> None:
    options = f"size={kib}k,nr_inodes={_MAX_FILES},mode={_MODE:o}"
    try:
        mount("shm", directory, "tmpfs", _FLAGS, options)
    except OSError as error:
        raise ShmError(
            f"{directory} cannot be mounted ({os.strerror(error.errno or 0)}): run this "
            "container privileged"
        ) from error


def _meminfo() -> str:
    try:
        return Path("/proc/meminfo").read_text()
    except OSError:
        return ""
