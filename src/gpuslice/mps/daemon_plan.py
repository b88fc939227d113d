"""Pools -> the MPS control daemons that a node runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuslice.config.settings import Settings
from gpuslice.mps.driver_support import has_multi_user_servers
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.rules import SharingStrategy


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """The daemon of one resource, and the UUIDs of the GPUs that it serves, in their order."""

    resource: str
    gpus: tuple[str, ...]
    # The most that one container can get of each GPU.
    max_limits: tuple[Limits, ...]
    # Whether a container can get several replicas of a GPU.
    merges: bool
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
    daemons = tuple(
        _spec(pool, multi_user=multi_user) for pool in pools if pool.sharing is SharingStrategy.MPS
    )
    return DaemonPlan(daemons, frozenset(present))


def can_stay(running: Sequence[str], wanted: Sequence[str], present: frozenset[str]) -> bool:
    """Whether a daemon with these GPUs can stay: if it stops, all its clients fail.

    A GPU that is missing does no harm and may return. A GPU that is present and used in another way
    must be released.
    """
    surplus = set(running) - set(wanted)
    return set(wanted) <= set(running) and not surplus & present


def _spec(pool: Pool, *, multi_user: bool) -> DaemonSpec:
    # Parts without replicas are whole GPUs of the same name, which do not use MPS.
    shared = [part for part in pool.parts if part.is_shared]
    merges = not pool.one_share_per_container
    return DaemonSpec(
        pool.resource,
        tuple(part.device.uuid for part in shared),
        tuple(_max_limits(part, merges=merges) for part in shared),
        merges,
        multi_user,
    )


def _max_limits(part: Part, *, merges: bool) -> Limits:
    """Computed like the limits of containers, so that a default never reduces them."""
    return part.share.times(part.count if merges else 1)
