"""Reads what the kernel knows about processes. Everything is bounded, and nothing blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpuslice.watchdog.cgroup_path import ContainerId, container_of

PROC = Path("/proc")
# A path has at most 4096 bytes, and cgroup v1 has about a dozen hierarchies.
_MOST_BYTES = 64 * 1024
# Fields of /proc/<pid>/stat after the name of the program.
_STATE, _STARTED = 0, 19
_ENDED = ("Z", "X", "x")
# The first process of a pod whose containers share their process ids.
_PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    # Distinguishes it from a later process with the same pid.
    started_ticks: int


@dataclass(frozen=True, slots=True)
class ContainedProcess:
    process: ProcessId
    container: ContainerId


def read_process(pid: int, proc: Path = PROC) -> ContainedProcess | None:
    """None: it has ended, or it is in no container of a pod."""
    before = read_process_id(pid, proc)
    if before is None:
        return None
    container = container_of(_read(proc / str(pid) / "cgroup"))
    # Another process may have got the pid in between.
    if container is None or read_process_id(pid, proc) != before:
        return None
    return ContainedProcess(before, container)


def read_process_id(pid: int, proc: Path = PROC) -> ProcessId | None:
    """None: it does not run. A zombie has released its memory."""
    # The name of the program is in parentheses and may contain any character.
    fields = _read(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(fields) <= _STARTED or fields[_STATE] in _ENDED or not fields[_STARTED].isdecimal():
        return None
    return ProcessId(pid, int(fields[_STARTED]))


def sees_only_itself(proc: Path = PROC, own_pid: int | None = None) -> bool:
    """Whether this program is in a process namespace of its own container or pod."""
    pid = os.getpid() if own_pid is None else own_pid
    return pid == 1 or _read(proc / "1" / "comm").strip() == _PAUSE


def _read(path: Path) -> str:
    """Empty if the process has ended."""
    try:
        with path.open("rb", buffering=0) as file:
            content = file.read(_MOST_BYTES) or b""
    except OSError:
        return ""
    return content.decode(errors="replace")
