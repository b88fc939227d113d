"""Limits of the memory that all processes of a cgroup use together: drivers from 615 on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuslice.gpus.nvml.limited_calls import SubjectCalls

NO_LIMIT = int(pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """In bytes. The soft limit is a reservation, the hard limit cannot be exceeded."""

    soft: int
    hard: int


def read_limits(raw: Any, call: SubjectCalls, cgroup: str) -> MemoryLimits:
    """`cgroup` is its directory. Raises NvmlError, which is `unsupported` before driver 615."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(cgroup))
    call(pynvml.nvmlDeviceGetMemoryLimits_v1, raw, limits)
    return MemoryLimits(int(limits.softLimit), int(limits.hardLimit))


def write_limits(raw: Any, call: SubjectCalls, cgroup: str, limits: MemoryLimits) -> None:
    """Requires root. Raises NvmlError."""
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=os.fsencode(cgroup), softLimit=limits.soft, hardLimit=limits.hard
    )
    call(pynvml.nvmlDeviceSetMemoryLimits_v1, raw, wanted)
