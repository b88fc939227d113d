"""Devices of pods -> the memory limits of their cgroups. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuslice.slicing.holders import Holder
from gpuslice.slicing.pool import Pool
from gpuslice.watchdog.attribution import granted

# Ids by resource.
Devices = Mapping[str, frozenset[str]]
# Bytes by UUID of the GPU.
Limits = Mapping[str, int]


@dataclass(frozen=True)
class PodDevices:
    uid: str
    # By name of the container, with init containers.
    containers: Mapping[str, Devices]

    @property
    def together(self) -> Devices:
        """Each id once: init containers leave their devices to the other containers."""
        ids: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
        for devices in self.containers.values():
            for resource, some in devices.items():
                ids[resource] |= some
        return dict(ids)


def pods_of(held: Iterable[tuple[str, Holder]]) -> tuple[PodDevices, ...]:
    """From resources, and containers whose `pod` is a UID."""
    found: defaultdict[str, defaultdict[str, dict[str, frozenset[str]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for resource, holder in held:
        devices = found[holder.pod][holder.container]
        devices[resource] = devices.get(resource, frozenset()) | holder.ids
    return tuple(PodDevices(uid, dict(containers)) for uid, containers in found.items())


def holder_of(pods: Iterable[PodDevices], resource: str, ids: Iterable[str]) -> PodDevices | None:
    """The only pod that holds all these devices; None: there is none, or several."""
    wanted = frozenset(ids)
    found = [pod for pod in pods if wanted <= pod.together.get(resource, frozenset())]
    return found[0] if len(found) == 1 else None


def limits_of(devices: Devices, pools: Sequence[Pool]) -> Limits:
    """GPUs that are held as a whole, or by MIG devices, have no limit."""
    grants = granted(devices, pools)
    mig = {part.device.uuid for pool in pools for part in pool.parts if part.device.mig_enabled}
    return {
        gpu: limit
        for gpu, limit in grants.limits.items()
        if gpu not in grants.unlimited and gpu not in mig
    }


def container_limits(
    pod: PodDevices, names: Mapping[str, str], ids: Iterable[str], pools: Sequence[Pool]
) -> Iterator[tuple[str, Limits]]:
    """Ids of running containers of the pod, and their limits.

    `names`: those that are known, by id. They are not needed if only one container has devices: the
    others of the pod have none, and the limit of the pod applies to them anyway.
    """
    limits = [limits_of(devices, pools) for devices in pod.containers.values()]
    common = limits[0] if limits and all(one == limits[0] for one in limits) else None
    for container_id in ids:
        if common:
            yield container_id, common
            continue
        devices = pod.containers.get(names.get(container_id, ""))
        own = {} if devices is None else limits_of(devices, pools)
        if own:
            yield container_id, own
