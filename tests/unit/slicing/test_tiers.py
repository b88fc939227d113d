"""How firmly limits hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.device import mig_devices, whole
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule, SharingStrategy
from gpuslice.slicing.tiers import Enforcement, Tier, tier_of, weakest

from .nodes import gpu, mig_gpu, part

_counted, _ = memory_pool([gpu(0)], MemoryRule())
_limited, _ = memory_pool([gpu(0)], MemoryRule(limited=True))
assert _counted is not None
assert _limited is not None
COUNTED, LIMITED = _counted, _limited
TIME = Pool("t", (replace(part(whole(gpu(1)), 4), daemon=None),), SharingStrategy.TIME_SLICING)
MIG = Pool("m", (part(mig_devices(mig_gpu(0, ("1g.5gb", 4864, 1)))[0], 2),), SharingStrategy.MPS)
WHOLE = Pool("w", (part(whole(gpu(2))),))

NOTHING, WATCHDOG, DRIVER, BOTH = (
    Enforcement(watchdog_acts=acts, driver_limits=limits)
    for limits in (False, True)
    for acts in (False, True)
)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (WHOLE, (None, None, None, None)),
        (TIME, (Tier.COUNTED,) * 4),
        (MIG, (Tier.ENVIRONMENT,) * 4),
        (COUNTED, (Tier.COUNTED, Tier.WATCHED, Tier.DRIVER, Tier.DRIVER)),
        (LIMITED, (Tier.ENVIRONMENT, Tier.WATCHED, Tier.DRIVER, Tier.DRIVER)),
    ],
    ids=["whole", "time-slicing", "MIG", "counted", "limited"],
)
def test_the_firmest_way_that_works_is_the_tier(
    pool: Pool, expected: tuple[Tier | None, ...]
) -> None:
    found = tuple(tier_of(pool, one) for one in (NOTHING, WATCHDOG, DRIVER, BOTH))
    assert found == expected


def test_the_tier_of_a_node_is_its_weakest() -> None:
    assert weakest([Tier.DRIVER, Tier.ENVIRONMENT, Tier.WATCHED]) is Tier.ENVIRONMENT
    assert weakest([]) is None


@given(st.lists(st.sampled_from(Tier), min_size=1))
def test_no_resource_is_below_the_node(tiers: list[Tier]) -> None:
    order = list(Tier)
    node = weakest(tiers)
    assert node in tiers
    assert all(order.index(node) <= order.index(tier) for tier in tiers)
