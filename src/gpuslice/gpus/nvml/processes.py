"""Processes that use a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuslice.gpus.nvml.calls import NvmlError
from gpuslice.gpus.nvml.limited_calls import SubjectCalls

# The newest version of each call, and the one before. Clients of MPS have a list of their own.
_LISTS: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ),
)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    # In the process namespace of the caller; 0 if it cannot see the process.
    pid: int
    # None: the driver does not know.
    used_bytes: int | None


def running_processes(raw: Any, call: SubjectCalls) -> tuple[GpuProcess, ...]:
    """A process may be in several lists, which show the same memory. Raises NvmlError.

    Processes that cannot be seen have the same pid and are separate.
    """
    used: dict[int, int | None] = {}
    hidden: list[GpuProcess] = []
    for newest, older in _LISTS:
        for one in _list(raw, call, newest, older):
            # The binding replaces "not available" by None.
            memory = None if one.usedGpuMemory is None else int(one.usedGpuMemory)
            if one.pid == 0:
                hidden.append(GpuProcess(0, memory))
            else:
                known = used.get(one.pid, 0)
                used[one.pid] = None if known is None or memory is None else max(known, memory)
    return (*(GpuProcess(pid, memory) for pid, memory in used.items()), *hidden)


def _list(
    raw: Any, call: SubjectCalls, newest: Callable[[Any], Any], older: Callable[[Any], Any]
) -> list[Any]:
    try:
        return list(call(newest, raw))
    except NvmlError as error:
        if not error.unsupported:
            raise
    try:
        return list(call(older, raw))
    except NvmlError as error:
        if error.unsupported:  # for example graphics on a GPU that has none
            return []
        raise
