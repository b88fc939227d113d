"""Process names, process ends and file descriptors on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def rename(*words: str) -> None:
    """Changes the name and command line of this process, as ps, pgrep and /proc show them."""
    title = "\0".join(words)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(words[0].encode()[:15]), 0, 0, 0)
    # Fields 48 and 49 of proc_pid_stat(5): the addresses of the command line.
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    room = end - start
    if start and room > 1:
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


def end_with_parent(parent: int) -> None:
    """Sends SIGTERM to this process when the parent ends. A change of the user id resets it."""
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
                continue  # the descriptor of the directory listing


def detach(ready: int) -> None:
    """Leaves the session and all open files except `ready`."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    close_descriptors({0, 1, 2, ready})


def pid_namespace(pid: int) -> str:
    """The inode of the PID namespace of a process."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return "0"
