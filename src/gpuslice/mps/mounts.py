"""Mounts of a process: the kernel's calls, and its list of mounts."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

_MOUNTINFO = Path("/proc/self/mountinfo")
_CLONE_NEWNS = 0x20000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8


class MountFlag(IntFlag):
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    REMOUNT = 32
    NOSYMFOLLOW = 256
    BIND = 0x1000
    REC = 0x4000
    PRIVATE = 1 << 18
    RELATIME = 1 << 21


@dataclass(frozen=True, slots=True)
class MountPoint:
    path: Path
    filesystem: str
    # Whether mounts below it appear in other mount namespaces, for example that of the host.
    is_shared: bool


def mount(
    source: str, target: Path, filesystem: str | None, flags: MountFlag, options: str = ""
) -> None:
    """mount(2). Raises OSError."""
    done = _libc().mount(
        os.fsencode(source),
        os.fsencode(target),
        filesystem.encode() if filesystem else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(done, target)


def unmount(target: Path) -> None:
    """Containers that use the mount keep it. Raises OSError."""
    _check(_libc().umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW), target)


def enter_new_namespace() -> None:
    """From now on, mounts of this process concern no other. Raises OSError."""
    _check(_libc().unshare(_CLONE_NEWNS), Path("/"))
    mount("none", Path("/"), None, MountFlag.REC | MountFlag.PRIVATE)


def mount_points() -> list[MountPoint]:
    """Of this process, in the order of mounting."""
    return parse_mountinfo(_MOUNTINFO.read_text(errors="surrogateescape"))


def parse_mountinfo(text: str) -> list[MountPoint]:
    """proc_pid_mountinfo(5). It escapes special characters; the directories of MPS have none."""
    found = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) >= 6 and kind:
            shared = any(one.startswith("shared:") for one in fields[6:])
            found.append(MountPoint(Path(fields[4]), kind[0], shared))
    return found


def mount_of(path: Path, points: list[MountPoint]) -> MountPoint | None:
    """The mount that contains this path: of those with the longest path, the topmost."""
    containing = [point for point in points if path.is_relative_to(point.path)]
    longest = max((len(point.path.parts) for point in containing), default=0)
    return next((p for p in reversed(containing) if len(p.path.parts) == longest), None)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(done: int, target: Path) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))
