"""Processes on GPUs, containers and their devices -> who uses how much of what was granted. Pure.

A process counts only if it is certain which container it belongs to, and what was granted to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuslice.slicing.pool import Pool
from gpuslice.slicing.tiers import has_memory_shares
from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.container_names import ContainerName
from gpuslice.watchdog.process_files import ContainedProcess, ProcessId

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Container:
    """A running container that holds shares of GPUs."""

    name: ContainerName
    id: ContainerId

    def __str__(self) -> str:
        return f"{self.name.namespace}/{self.name.pod}/{self.name.container}"


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A process on one GPU."""

    process: ProcessId
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory of one GPU that a container uses."""

    container: Container
    # UUID.
    gpu: str
    granted_bytes: int
    # The oldest first.
    processes: tuple[ProcessUsage, ...]

    @property
    def used_bytes(self) -> int:
        return sum(one.used_bytes for one in self.processes)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """What the driver reports. `used_bytes` is None if it does not know."""

    gpu: str
    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Attribution:
    usages: tuple[Usage, ...] = ()
    # Processes that use GPUs and belong to no container with a grant: not watched, never touched.
    unattributed: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    """What one container may use. GPUs that are not in `limits` are not its own."""

    # Bytes by UUID of the GPU.
    limits: Mapping[str, int] = field(default_factory=dict)
    # GPUs without a limit of memory.
    unlimited: frozenset[str] = frozenset()
    # The container also holds devices that others advertise. They may be GPUs.
    others: bool = False

    def limit_bytes(self, gpu: str) -> int | None:
        """None: nothing is known to be forbidden."""
        if gpu in self.unlimited or not self.limits or (self.others and gpu not in self.limits):
            return None
        return self.limits.get(gpu, 0)


def watched_gpus(pools: Iterable[Pool]) -> frozenset[str]:
    """GPUs with shares of a limited size, and the other GPUs that their daemons may reach."""
    limited = [pool for pool in pools if has_memory_shares(pool)]
    return frozenset(
        part.device.uuid for pool in limited for part in pool.parts if not part.device.mig_enabled
    )


def granted(devices: Mapping[str, Iterable[str]], pools: Sequence[Pool]) -> Granted:
    """`devices`: ids by resource, of one container."""
    by_resource = {pool.resource: pool for pool in pools}
    limits: defaultdict[str, int] = defaultdict(int)
    unlimited: set[str] = set()
    others = False
    for resource, ids in devices.items():
        pool = by_resource.get(resource)
        for device_id in ids:
            position = None if pool is None else pool.owners.get(device_id)
            if pool is None or position is None:
                others = True
                continue
            part = pool.parts[position]
            if has_memory_shares(pool) and part.is_shared:
                limits[part.device.uuid] += part.share.memory_mib * _MIB
            else:
                unlimited.add(part.device.gpu)
    return Granted(dict(limits), frozenset(unlimited), others)


def attribute(
    processes: Iterable[GpuProcess],
    contained: Mapping[int, ContainedProcess],
    names: Mapping[ContainerId, ContainerName],
    devices: Mapping[ContainerName, Mapping[str, Iterable[str]]],
    pools: Sequence[Pool],
) -> Attribution:
    """`contained`: by pid. `devices`: what the kubelet lists for each container."""
    ambiguous = _ambiguous(names)
    grants: dict[ContainerName, Granted] = {}
    found: defaultdict[tuple[Container, str], dict[ProcessId, int]] = defaultdict(dict)
    unknown: set[tuple[Container, str]] = set()
    unattributed: set[int] = set()
    for one in processes:
        inside = contained.get(one.pid)
        name = None if inside is None else names.get(inside.container)
        if inside is None or name is None or name not in devices or name in ambiguous:
            unattributed.add(one.pid)
            continue
        if name not in grants:
            grants[name] = granted(devices[name], pools)
        if grants[name].limit_bytes(one.gpu) is None:
            continue
        key = Container(name, inside.container), one.gpu
        if one.used_bytes is None:
            unknown.add(key)
        else:
            known = found[key].get(inside.process, 0)
            found[key][inside.process] = max(known, one.used_bytes)
    usages = (
        _usage(container, gpu, grants[container.name], used)
        for (container, gpu), used in found.items()
        if (container, gpu) not in unknown
    )
    ordered = sorted(usages, key=lambda usage: (str(usage.container), usage.gpu))
    return Attribution(tuple(ordered), len(unattributed))


def _usage(container: Container, gpu: str, grant: Granted, used: Mapping[ProcessId, int]) -> Usage:
    oldest_first = sorted(used, key=lambda process: (process.started_ticks, process.pid))
    return Usage(
        container,
        gpu,
        grant.limit_bytes(gpu) or 0,
        tuple(ProcessUsage(process, used[process]) for process in oldest_first),
    )


def _ambiguous(names: Mapping[ContainerId, ContainerName]) -> set[ContainerName]:
    """Names of containers of which two run.

    For example the container of a pod that was deleted by force, and that of its successor. The
    kubelet lists devices by name, so it is not certain whose they are.
    """
    seen: set[ContainerName] = set()
    twice: set[ContainerName] = set()
    for name in names.values():
        (twice if name in seen else seen).add(name)
    return twice
