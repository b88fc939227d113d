"""Pools -> the MPS control daemons that a node runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuslice.config.settings import Settings
from gpuslice.mps.driver_support import has_multi_user_servers
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.rules import SharingStrategy
from gpuslice.slicing.selection import by_index


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """The daemon of one resource, and the UUIDs of the GPUs that it serves, in their order."""

    resource: str
    gpus: tuple[str, ...]
    # What it limits its clients to on each GPU, in addition to their own limits.
    max_limits: tuple[Limits, ...]
    # Whether that is less than the whole GPU.
    limited: bool
    # Whether clients of all users share one server. Otherwise clients of other users wait.
    multi_user: bool


@dataclass(frozen=True, slots=True)
class DaemonPlan:
    daemons: tuple[DaemonSpec, ...] = ()
    # UUIDs of all GPUs of the node, shared by MPS or not.
    present: frozenset[str] = frozenset()


def uses_mps(settings: Settings) -> bool:
    """Whether the settings share anything by MPS, independent of the hardware."""
    return any(rule.strategy is SharingStrategy.MPS for rule in settings.rules.replicas)


def plan_daemons(pools: Iterable[Pool], present: Iterable[str], driver_version: str) -> DaemonPlan:
    """`present`: all GPUs of the node, including those that are not this node's to advertise."""
    multi_user = has_multi_user_servers(driver_version)
    shared = [pool for pool in pools if pool.sharing is SharingStrategy.MPS]
    names = sorted({name for pool in shared for name in pool.daemons})
    daemons = tuple(_spec(name, shared, multi_user=multi_user) for name in names)
    return DaemonPlan(daemons, frozenset(present))


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
    )


def _whole(part: Part) -> Limits:
    return Limits(part.device.memory_mib, 100)
