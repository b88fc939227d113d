"""What Linux knows about our processes: their names, and when they end."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def rename(title: str) -> None:
    """Makes ps, pgrep and /proc show `title` instead of the interpreter's command line."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]), 0, 0, 0)
    # Fields 48 and 49 of proc_pid_stat(5): where the kernel reads the command line.
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    room = end - start
    if start and room > 1:
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


def end_with_parent(parent: int) -> None:
    """Asks for SIGTERM when the parent ends. Must follow any change of user id, which undoes it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def close_descriptors(keep: set[int]) -> None:
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the descriptor that listed the directory


def detach(ready: int) -> None:
    """Leaves session, working directory and open files of whoever started us; keeps `ready`."""
    os.setsid()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    close_descriptors({0, 1, 2, ready})


def pid_namespace(pid: int) -> str:
    """The inode of a process's PID namespace."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return "0"
