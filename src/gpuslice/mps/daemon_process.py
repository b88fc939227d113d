"""The process of an MPS control daemon: whether it runs, and how to stop it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.files.untrusted import read_untrusted
from gpuslice.mps.control import PROGRAM
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# The kernel keeps this much of a program's name.
_COMM_LENGTH = 15
_ENDED = ("Z", "X")
_PID_FILE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    # Distinguishes it from a later process with the same pid.
    started_ticks: int
    # Whether its environment names this pipe directory. A daemon of the host has another path, and
    # the pid in an old file may belong to another daemon.
    listens_here: bool


def find_process(paths: DaemonPaths) -> Process | None:
    """The daemon of this pipe directory, if it runs. Blocks on /proc.

    Containers can write the pid file and can start programs of any name, so a process counts only
    if it is in our own pid namespace, where containers cannot start any. The pid file is needed
    only for a daemon of the host, whose environment has another path.
    """
    try:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    for pid in pids:
        if (found := _daemon(pid, paths)) is not None and found.listens_here:
            return found
    named = _pid_in_file(paths)
    return None if named is None else _daemon(named, paths)


def _daemon(pid: int, paths: DaemonPaths) -> Process | None:
    proc = Path(f"/proc/{pid}")
    try:
        if not (proc / "comm").read_text().startswith(PROGRAM[:_COMM_LENGTH]):
            return None
        if (proc / "ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return None
        # The same program sends commands to the daemon.
        words = (proc / "cmdline").read_bytes().replace(b"\0", b" ").split()
        if not {b"-d", b"-f"}.intersection(words):
            return None
        variables = (proc / "environ").read_bytes().split(b"\0")
        state, started_ticks = _state(pid)
    except (OSError, ValueError):
        return None
    if state in _ENDED:
        return None
    named = f"CUDA_MPS_PIPE_DIRECTORY={paths.pipe}".encode() in variables
    return Process(pid, started_ticks, named and _sees_same_directory(pid, paths.pipe))


def _sees_same_directory(pid: int, path: Path) -> bool:
    """In another mount namespace, another directory may have the same path."""
    try:
        return Path(f"/proc/{pid}/root{path}").samefile(path)
    except OSError:
        return False


def _pid_in_file(paths: DaemonPaths) -> int | None:
    try:
        return int(read_untrusted(paths.pid_file, _PID_FILE_BYTES))
    except (OSError, ValueError):
        return None


def has_ended(process: Process) -> bool:
    """Also reaps it: process 1 of a container is the parent of orphans."""
    try:
        state, started_ticks = _state(process.pid)
    except (OSError, ValueError):
        return True
    if started_ticks != process.started_ticks:
        return True
    if state in _ENDED:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        return True
    return False


async def end_process(process: Process, exit_seconds: float) -> None:
    """Waits until a daemon that received `quit` exits, and kills it if it does not."""
    if not process.listens_here or await _ends(process, exit_seconds):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    if not await _ends(process, exit_seconds):
        log.error(
            Code.MPS_STOP_FAILED,
            "cannot stop MPS control daemon",
            pid=process.pid,
            remedy="check the driver",
        )


async def _ends(process: Process, seconds: float) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not has_ended(process):
        if clock() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def _state(pid: int) -> tuple[str, int]:
    """State and start time: fields 3 and 22 of proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError("no state")
    return fields[0], int(fields[19])
