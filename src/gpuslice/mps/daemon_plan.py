"""Pools -> the MPS control daemons that a node runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuslice.config.settings import MpsNamespaces, Settings
from gpuslice.mps.driver_support import has_multi_user_servers, has_namespaces
from gpuslice.mps.namespaces import DEFAULT_THREADS_PERCENT, NamespacePlan
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.rules import SharingStrategy
from gpuslice.slicing.selection import by_index


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """A daemon, and the UUIDs of the GPUs that it serves, in their order."""

    # A resource, or for memory slices the UUID of the GPU.
    name: str
    gpus: tuple[str, ...]
    # What it limits its clients to on each GPU, in addition to their own limits.
    max_limits: tuple[Limits, ...]
    # Whether the daemon must have these limits: they are less than the whole GPU.
    limited: bool
    # Whether clients of all users share one server. Otherwise clients of other users wait.
    multi_user: bool
    # Whether it is for memory slices.
    slices: bool = False
    # Whether its clients have static partitions of SMs.
    partitions: bool = False
    # None: it has no namespaces.
    namespaces: NamespacePlan | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Options of NVIDIA's program, which older drivers do not have."""
        multi_user = ("-multiuser-server",) if self.multi_user else ()
        return (*multi_user, "-S") if self.partitions else multi_user

    @property
    def namespace_options(self) -> tuple[str, ...]:
        """The options instead of these for a daemon with namespaces."""
        return ("-p", "3", "-m") if self.multi_user else ("-p", "3")


@dataclass(frozen=True, slots=True)
class DaemonPlan:
    daemons: tuple[DaemonSpec, ...] = ()
    # Whether the memory of GPUs is sliced, each with a daemon of its own.
    slices: bool = False
    # UUIDs of all GPUs of the node, shared by MPS or not.
    present: frozenset[str] = frozenset()


def uses_mps(settings: Settings) -> bool:
    """Whether the settings share anything by MPS, independent of the hardware."""
    return settings.has_mps_replicas or settings.has_managed_slices


def plan_daemons(
    pools: Iterable[Pool],
    present: Iterable[str],
    driver_version: str,
    namespaces: MpsNamespaces = MpsNamespaces.OFF,
) -> DaemonPlan:
    """`present`: all GPUs of the node, including those that are not this node's to advertise.

    `namespaces` apply to daemons for slices.
    """
    if namespaces is MpsNamespaces.AUTO and not has_namespaces(driver_version):
        namespaces = MpsNamespaces.OFF
    multi_user = has_multi_user_servers(driver_version)
    pools = list(pools)
    shared = [pool for pool in pools if pool.sharing is SharingStrategy.MPS]
    names = sorted({name for pool in shared for name in pool.daemons})
    daemons = [_spec(name, shared, multi_user=multi_user) for name in names]
    sliced = [pool for pool in pools if pool.daemon_per_gpu]
    daemons += [
        _slices_spec(part, namespaces, multi_user=multi_user)
        for pool in sliced
        for part in pool.parts
    ]
    return DaemonPlan(tuple(daemons), bool(sliced), frozenset(present))


def may_return(running: DaemonSpec, plan: DaemonPlan) -> bool:
    """Whether a daemon for slices stays although the plan has none for its GPU.

    The GPU is missing, perhaps for a moment, and another use of it would need the GPU.
    """
    return running.slices and plan.slices and not plan.present.intersection(running.gpus)


def can_stay(running: Sequence[str], wanted: Sequence[str], present: frozenset[str]) -> bool:
    """Whether a daemon with these GPUs can stay: if it stops, all its clients fail.

    A GPU that is missing does no harm and may return. A GPU that is present and used in another way
    must be released.
    """
    surplus = set(running) - set(wanted)
    return set(wanted) <= set(running) and not surplus & present


def _spec(name: str, pools: Sequence[Pool], *, multi_user: bool) -> DaemonSpec:
    served = [(pool, part) for pool in pools for part in pool.parts if part.daemon == name]
    limited = all(pool.limited_by_daemon for pool, _ in served)
    # Several pools can have shares of one GPU.
    by_gpu = {part.device.uuid: part for _, part in served}
    parts = sorted(by_gpu.values(), key=lambda part: by_index(part.device))
    return DaemonSpec(
        name,
        tuple(part.device.uuid for part in parts),
        tuple(part.share.times(1) if limited else _whole(part) for part in parts),
        limited,
        multi_user,
        partitions=any(map(_partitioned, parts)),
    )


def _slices_spec(part: Part, namespaces: MpsNamespaces, *, multi_user: bool) -> DaemonSpec:
    """A program that removes its own limits gets all slices of its GPU, and not their reserve.

    If containers have namespaces, a program outside of them gets one slice.
    """
    uuid = part.device.uuid
    everything = Limits(part.share.memory_mib * part.count, 100)
    one = Limits(part.share.memory_mib, DEFAULT_THREADS_PERCENT)
    return DaemonSpec(
        uuid,
        (uuid,),
        (everything,),
        limited=True,
        multi_user=multi_user,
        slices=True,
        partitions=_partitioned(part),
        namespaces=(
            None
            # Partitions have a protocol of their own.
            if namespaces is MpsNamespaces.OFF or _partitioned(part)
            else NamespacePlan(namespaces is MpsNamespaces.REQUIRE, one)
        ),
    )


def _whole(part: Part) -> Limits:
    return Limits(part.device.memory_mib, 100)


def _partitioned(part: Part) -> bool:
    return part.share.threads is not None and part.share.threads.partitioned
