"""Memory limits of cgroups, which the driver enforces from branch 615 on."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice_sim.state import Process


def cgroup_room(
    values: Mapping[str, str], processes: Iterable[Process], gpu: int, pid: int
) -> float:
    """What a process may still allocate: its cgroup and those above it may have hard limits."""
    own = cgroup_of(pid)
    if own is None:
        return math.inf
    found = list(processes)
    above = () if _is_flat(values) else own.parents
    return min(_room(values, found, gpu, one) for one in (own, *above))


def reported_room(
    values: Mapping[str, str], processes: Iterable[Process], gpu: int, pid: int
) -> float:
    """By the limit of its own cgroup, which is the only one that CUDA reports."""
    own = cgroup_of(pid)
    return math.inf if own is None else _room(values, processes, gpu, own)


def cgroup_of(pid: int) -> PurePosixPath | None:
    """Of version 2; None: not known."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return PurePosixPath(paths[0]) if paths else None


def _room(
    values: Mapping[str, str], processes: Iterable[Process], gpu: int, cgroup: PurePosixPath
) -> float:
    text = values.get(f"gpu.{gpu}.limits.{cgroup}")
    if not text:
        return math.inf
    _soft, hard = map(int, text.split())
    used = 0
    for process in processes:
        inside = cgroup_of(process.pid)
        if inside == cgroup or (
            inside is not None and inside.is_relative_to(cgroup) and not _is_flat(values)
        ):
            used += process.used_bytes
    return max(hard - used, 0)


def _is_flat(values: Mapping[str, str]) -> bool:
    """Without the dmem controller of the kernel, limits do not apply to cgroups below."""
    return values.get("limits.flat") == "1"
