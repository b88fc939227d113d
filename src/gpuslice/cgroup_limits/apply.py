"""Sets limits of cgroups in the driver, and reads them back. Blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.cgroup_limits.wanted import Limits
from gpuslice.gpus.nvml import GpuHandle, MemoryLimits, Nvml, NvmlError
from gpuslice.slicing.units import describe_mib

_MIB = 1024 * 1024
# The driver may round down to whole pages, of which the largest has this size.
_PAGE_BYTES = 2 * _MIB
_SINCE = "drivers from 615 on have them"


class NotLimited(Exception):
    """The message says why the driver does not limit a cgroup."""


@dataclass(frozen=True, slots=True)
class Target:
    """A cgroup and its limits."""

    cgroup: Path
    limits: Limits


@dataclass(frozen=True, slots=True)
class Applied:
    # Those that did not have their limits before.
    changed: tuple[Target, ...] = ()
    # Why others do not have them now.
    failed: Mapping[Path, str] = field(default_factory=dict)


def check_support(
    nvml: Nvml | None, indices: Mapping[str, int], cgroup: Path, *, write: bool
) -> None:
    """Whether limits can be read, and set, on these GPUs. Raises NotLimited.

    Writes the limits that the cgroup has: nothing changes, and a right that is missing is found.
    """
    for uuid, index in indices.items():
        try:
            gpu = _gpu(nvml, uuid, index)
            limits = gpu.memory_limits(str(cgroup))
            if write:
                gpu.limit_memory(str(cgroup), limits)
        except NvmlError as error:
            reason = f"the driver has no memory limits of cgroups ({_SINCE}): {error}"
            raise NotLimited(reason if error.unsupported else _sentence(error)) from error


def apply_limits(
    nvml: Nvml | None, indices: Mapping[str, int], targets: Iterable[Target]
) -> Applied:
    """A cgroup that has disappeared needs no limit."""
    changed = []
    failed = {}
    for target in targets:
        try:
            if _apply(nvml, indices, target):
                changed.append(target)
        except NotLimited as error:
            if target.cgroup.is_dir():
                failed[target.cgroup] = str(error)
    return Applied(tuple(changed), failed)


def _apply(nvml: Nvml | None, indices: Mapping[str, int], target: Target) -> bool:
    """Returns whether the limits were others."""
    changed = False
    path = str(target.cgroup)
    for uuid, hard in target.limits.items():
        if uuid not in indices:
            raise NotLimited(f"GPU {uuid} is gone")
        # A soft limit would reserve memory, which stays reserved if the cgroup disappears before
        # the limit is removed. Shares never exceed their GPU together, so it has no use.
        wanted = MemoryLimits(soft=0, hard=hard)
        try:
            gpu = _gpu(nvml, uuid, indices[uuid])
            if _holds(gpu.memory_limits(path), wanted):
                continue
            gpu.limit_memory(path, wanted)
            found = gpu.memory_limits(path)
        except NvmlError as error:
            raise NotLimited(_sentence(error)) from error
        if not _holds(found, wanted):
            raise NotLimited(
                f"the driver accepted a limit of {describe_mib(hard // _MIB)} for {path} on GPU "
                f"{uuid}, and reports {found.hard} bytes (soft limit: {found.soft})"
            )
        changed = True
    return changed


def _holds(found: MemoryLimits, wanted: MemoryLimits) -> bool:
    return found.soft == wanted.soft and wanted.hard - _PAGE_BYTES < found.hard <= wanted.hard


def _gpu(nvml: Nvml | None, uuid: str, index: int) -> GpuHandle:
    """Raises NvmlError."""
    if nvml is None:
        raise NvmlError("the driver is not open")
    gpu = nvml.gpu(index)
    # The driver may have been reopened with another order.
    if gpu.uuid() != uuid:
        raise NvmlError(f"GPU {index} is another one")
    return gpu


def _sentence(error: NvmlError) -> str:
    if error.denied:
        return f"{error}: limits need root on the node (docs/security.md)"
    return str(error)
