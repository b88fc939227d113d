from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.device import mig_devices, whole
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.grant import grant
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.preference import prefer
from gpuslice.slicing.rules import Policy, SharingStrategy
from gpuslice.slicing.topology import Topology

from .nodes import SMALL, gpu, mig_gpu, part

DISTRIBUTED, PACKED, SPREAD = Policy.DISTRIBUTED, Policy.PACKED, Policy.SPREAD
FLAT = Topology()


def shared(
    *replicas: int, strategy: SharingStrategy = SharingStrategy.TIME_SLICING, fail: bool = False
) -> Pool:
    """A node of GPUs with so many replicas each, 0 for one that is not shared."""
    devices = tuple(part(whole(gpu(n)), count) for n, count in enumerate(replicas))
    return Pool("nvidia.com/gpu", devices, strategy, fail)


def free_of(pool: Pool, *free: int) -> list[str]:
    """The last so many ids of each device."""
    return [
        device_id
        for one, count in zip(pool.parts, free, strict=True)
        for device_id in list(one.ids)[one.count - count :]
    ]


def taken(
    pool: Pool,
    policy: Policy,
    available: list[str],
    size: int,
    must_include: tuple[str, ...] = (),
) -> dict[int, int]:
    """GPU -> how many of its ids are chosen."""
    chosen = prefer(pool, FLAT, policy, available, must_include, size)
    assert len(chosen) == size
    return dict(Counter(int(pool.parts[pool.owners[i]].device.gpu[4:]) for i in chosen))


# Whole GPUs


def test_whole_gpus_are_chosen_by_their_links_under_any_policy() -> None:
    pool = shared(0, 0, 0, 0, strategy=SharingStrategy.NONE)
    linked = Topology({("GPU-1", "GPU-3"): 300})
    for policy in Policy:
        assert prefer(pool, linked, policy, list(pool.owners), [], 2) == ["GPU-1", "GPU-3"]
        assert prefer(pool, linked, policy, list(pool.owners), [], 1) == ["GPU-0"]
        assert prefer(pool, linked, policy, list(pool.owners), ["GPU-3"], 2) == ["GPU-3", "GPU-1"]


def test_a_dead_gpu_changes_nothing_for_the_others() -> None:
    pool = shared(0, 0, 0, 0, strategy=SharingStrategy.NONE)
    linked = Topology({("GPU-2", "GPU-3"): 300})
    alive = ["GPU-1", "GPU-2", "GPU-3"]
    assert prefer(pool, linked, DISTRIBUTED, alive, [], 2) == ["GPU-2", "GPU-3"]


def test_unshared_gpus_of_a_shared_resource_are_chosen_by_their_links_too() -> None:
    pool = shared(4, 0, 0, 0)
    linked = Topology({("GPU-1", "GPU-3"): 300})
    assert prefer(pool, linked, DISTRIBUTED, ["GPU-1", "GPU-2", "GPU-3"], [], 2) == [
        "GPU-1",
        "GPU-3",
    ]


# Replicas


def test_distributed_takes_from_the_gpu_that_is_used_least() -> None:
    pool = shared(8, 8, 8)
    available = free_of(pool, 4, 6, 5)
    assert taken(pool, DISTRIBUTED, available, 1) == {1: 1}
    assert taken(pool, DISTRIBUTED, available, 3) == {1: 2, 2: 1}


def test_distributed_counts_what_is_used_and_not_what_is_free() -> None:
    pool = shared(2, 8)
    assert taken(pool, DISTRIBUTED, free_of(pool, 2, 7), 1) == {0: 1}


def test_a_tie_goes_to_the_gpu_touched_least_and_then_to_the_lowest_index() -> None:
    pool = shared(4, 4, 4)
    assert taken(pool, DISTRIBUTED, free_of(pool, 4, 4, 4), 2) == {0: 1, 1: 1}
    # GPU 2 is used once after the first pick, as are the others, but was touched.
    available = free_of(pool, 3, 3, 4)
    assert taken(pool, DISTRIBUTED, available, 2) == {2: 1, 0: 1}
    # The lowest index is no reason to take a second one from a GPU that was touched.
    first_free = shared(4, 4)
    assert prefer(first_free, FLAT, DISTRIBUTED, free_of(first_free, 4, 3), [], 2) == [
        "GPU-0::0",
        "GPU-1::1",
    ]


def test_packed_takes_from_the_gpu_that_is_used_most() -> None:
    pool = shared(8, 8, 8)
    available = free_of(pool, 4, 6, 2)
    assert taken(pool, PACKED, available, 2) == {2: 2}
    assert taken(pool, PACKED, available, 3) == {2: 2, 0: 1}


def test_packed_stays_on_the_gpu_that_is_held_where_both_are_used_alike() -> None:
    pool = shared(4, 4)
    assert taken(pool, PACKED, free_of(pool, 3, 4), 2, ("GPU-1::0",)) == {1: 2}


def test_spread_takes_no_second_replica_of_a_gpu_while_there_is_another() -> None:
    pool = shared(8, 8, 8)
    available = free_of(pool, 8, 1, 2)
    assert taken(pool, DISTRIBUTED, available, 3) == {0: 3}
    assert taken(pool, SPREAD, available, 3) == {0: 1, 1: 1, 2: 1}
    assert taken(pool, SPREAD, available, 5) == {0: 2, 1: 1, 2: 2}


def test_spread_counts_what_the_container_holds() -> None:
    pool = shared(8, 8)
    assert taken(pool, SPREAD, free_of(pool, 8, 2), 2, ("GPU-0::0",)) == {0: 1, 1: 1}


def test_replicas_are_taken_in_the_order_of_their_numbers() -> None:
    pool = shared(12)
    available = sorted(pool.owners, reverse=True)
    assert prefer(pool, FLAT, PACKED, available, [], 11) == [f"GPU-0::{n}" for n in range(11)]


# MIG devices


def mig_offer(*counts: int, replicas: int = 0) -> Pool:
    devices = [
        d for n, count in enumerate(counts) for d in mig_devices(mig_gpu(n, *[SMALL] * count))
    ]
    return Pool("nvidia.com/mig-1g.5gb", tuple(part(d, replicas) for d in devices))


def test_mig_devices_are_packed_by_the_gpu_they_are_a_part_of() -> None:
    pool = mig_offer(3, 3)
    available = ["MIG-0-0", "MIG-0-1", "MIG-0-2", "MIG-1-1"]
    assert taken(pool, PACKED, available, 1) == {1: 1}
    assert taken(pool, PACKED, available, 2) == {1: 1, 0: 1}
    assert taken(pool, DISTRIBUTED, available, 1) == {0: 1}


def test_replicas_of_mig_devices_are_spread_over_the_parts_of_a_gpu() -> None:
    pool = mig_offer(3, replicas=2)
    available = list(pool.owners)
    for policy in (DISTRIBUTED, SPREAD):
        assert prefer(pool, FLAT, policy, available, [], 3) == [
            "MIG-0-0::0",
            "MIG-0-1::0",
            "MIG-0-2::0",
        ]
    assert prefer(pool, FLAT, PACKED, available, [], 2) == ["MIG-0-0::0", "MIG-0-0::1"]


# What Allocate accepts


def test_several_mps_replicas_come_from_one_gpu() -> None:
    pool = shared(4, 4, 4, strategy=SharingStrategy.MPS)
    available = free_of(pool, 3, 1, 2)
    assert taken(pool, DISTRIBUTED, available, 2) == {0: 2}
    assert taken(pool, SPREAD, available, 2) == {0: 2}
    assert taken(pool, PACKED, available, 2) == {2: 2}
    assert taken(pool, PACKED, available, 1) == {1: 1}


def test_several_mps_replicas_come_from_the_gpu_that_is_held() -> None:
    pool = shared(4, 4, strategy=SharingStrategy.MPS)
    assert taken(pool, DISTRIBUTED, free_of(pool, 4, 2), 2, ("GPU-1::0",)) == {1: 2}


def test_where_no_gpu_has_enough_mps_replicas_it_still_answers_in_full() -> None:
    pool = shared(4, 4, strategy=SharingStrategy.MPS)
    chosen = prefer(pool, FLAT, DISTRIBUTED, free_of(pool, 2, 2), [], 3)
    assert len(chosen) == 3
    with pytest.raises(GrantRefused, match="no single GPU of this node has 3 replicas free"):
        grant(pool, chosen)


@pytest.mark.parametrize("strategy", [SharingStrategy.TIME_SLICING, SharingStrategy.MPS])
def test_where_replicas_come_one_at_a_time_a_larger_request_gets_unshared_gpus(
    strategy: SharingStrategy,
) -> None:
    pool = shared(4, 0, 4, 0, strategy=strategy, fail=True)
    assert taken(pool, DISTRIBUTED, list(pool.owners), 2) == {1: 1, 3: 1}


# In general


def test_too_few_are_better_than_none() -> None:
    pool = shared(2, 2)
    assert prefer(pool, FLAT, DISTRIBUTED, ["GPU-1::0"], [], 3) == ["GPU-1::0"]
    assert prefer(pool, FLAT, DISTRIBUTED, [], [], 3) == []


def test_unknown_and_repeated_ids_are_passed_over() -> None:
    pool = shared(2)
    available = ["GPU-0::1", "GPU-9::0", "GPU-0::1", "", "GPU-0"]
    must_include = ["GPU-0::0", "?", "GPU-0::0"]
    assert prefer(pool, FLAT, PACKED, available, must_include, 4) == ["GPU-0::0", "GPU-0::1"]


@pytest.mark.parametrize("size", [-5, 0])
def test_a_request_for_nothing_gets_nothing(size: int) -> None:
    pool = shared(2)
    assert prefer(pool, FLAT, PACKED, list(pool.owners), ["GPU-0::0"], size) == []


@st.composite
def questions(
    draw: st.DrawFn,
) -> tuple[Pool, Topology, Policy, list[str], list[str], int]:
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    strategy = draw(st.sampled_from([SharingStrategy.TIME_SLICING, SharingStrategy.MPS]))
    pool = shared(*counts, strategy=strategy, fail=draw(st.booleans()))
    known = list(pool.owners)
    available = draw(st.lists(st.sampled_from(known), unique=True))
    must_include = draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    pairs = [(a, b) for a in range(len(counts)) for b in range(a + 1, len(counts))]
    topology = Topology(
        {(f"GPU-{a}", f"GPU-{b}"): draw(st.sampled_from([10, 50, 300])) for a, b in pairs}
    )
    policy = draw(st.sampled_from(Policy))
    return pool, topology, policy, available, must_include, draw(st.integers(0, 40))


@given(questions(), st.data())
def test_an_answer_holds_what_it_must_and_only_what_is_free(
    question: tuple[Pool, Topology, Policy, list[str], list[str], int], data: st.DataObject
) -> None:
    pool, topology, policy, available, must_include, size = question
    chosen = prefer(*question)
    assert chosen[: len(must_include)] == must_include[:size]
    assert set(chosen) <= set(available)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    shuffled = data.draw(st.permutations(available))
    assert prefer(pool, topology, policy, shuffled, must_include, size) == chosen


@given(questions())
def test_an_answer_is_accepted_whenever_some_answer_would_be(
    question: tuple[Pool, Topology, Policy, list[str], list[str], int],
) -> None:
    pool, topology, policy, available, _, size = question
    chosen = prefer(pool, topology, policy, available, [], size)
    if len(chosen) < size or not size:
        return
    shared_ids = [i for i in available if pool.parts[pool.owners[i]].is_shared]
    unshared = len(available) - len(shared_ids)
    free = Counter(pool.owners[i] for i in shared_ids)
    possible = (
        size == 1
        or unshared >= size
        or (
            not pool.one_share_per_container
            and (
                pool.sharing is SharingStrategy.TIME_SLICING
                or any(count >= size for count in free.values())
            )
        )
    )
    try:
        grant(pool, chosen)
    except GrantRefused:
        assert not possible
    else:
        assert possible


@given(questions())
def test_spread_never_takes_two_of_a_gpu_while_another_has_one(
    question: tuple[Pool, Topology, Policy, list[str], list[str], int],
) -> None:
    pool, topology, _, available, _, size = question
    if pool.sharing is SharingStrategy.MPS or pool.one_share_per_container:
        return
    counts = Counter(pool.owners[i] for i in prefer(pool, topology, SPREAD, available, [], size))
    untouched = {pool.owners[i] for i in available} - counts.keys()
    assert not untouched or all(count == 1 for count in counts.values())
