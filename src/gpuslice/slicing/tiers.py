"""How firmly the limits of a resource hold: its tier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import SharingStrategy

_LIMITED = (SharingStrategy.MEMORY, SharingStrategy.MPS)


class Tier(Enum):
    """From the weakest to the firmest."""

    COUNTED = "counted"  # shares are counted, and nothing holds a container to its share
    ENVIRONMENT = "environment"  # variables limit each process, by MPS
    WATCHED = "watched"  # the watchdog ends what exceeds its share, after it did
    DRIVER = "driver"  # the driver limits all processes of a container together


_ORDER = tuple(Tier)


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What holds containers to their shares on this node, in addition to MPS."""

    # Whether the watchdog ends processes or evicts pods.
    watchdog_acts: bool = False
    # Whether the driver limits the memory of cgroups.
    driver_limits: bool = False


def has_memory_shares(pool: Pool) -> bool:
    """Whether a share of this pool is an amount of memory."""
    return pool.sharing in _LIMITED


def driver_can_limit(pool: Pool) -> bool:
    """The driver does not limit the memory of MIG devices by cgroups."""
    return has_memory_shares(pool) and not any(part.device.mig_enabled for part in pool.parts)


def tier_of(pool: Pool, enforcement: Enforcement) -> Tier | None:
    """None: the devices of the pool are not shared."""
    if pool.sharing is SharingStrategy.NONE:
        return None
    # The watchdog cannot read MIG devices either.
    if driver_can_limit(pool):
        if enforcement.driver_limits:
            return Tier.DRIVER
        if enforcement.watchdog_acts:
            return Tier.WATCHED
    return Tier.ENVIRONMENT if pool.daemons else Tier.COUNTED


def weakest(tiers: Iterable[Tier]) -> Tier | None:
    return min(tiers, key=_ORDER.index, default=None)
