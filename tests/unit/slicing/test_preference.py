from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.catalogue import DeviceOffer, Offered
from gpuslice.slicing.device import parts, whole
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.preference import prefer
from gpuslice.slicing.request import devices_of
from gpuslice.slicing.rules import Policy, SharingStrategy
from gpuslice.slicing.topology import Topology

from .nodes import SMALL, gpu, mig_gpu

DISTRIBUTED, PACKED, SPREAD = Policy.DISTRIBUTED, Policy.PACKED, Policy.SPREAD
FLAT = Topology()


def shared(
    *replicas: int, strategy: SharingStrategy = SharingStrategy.TIME_SLICING, fail: bool = False
) -> DeviceOffer:
    """A node of GPUs with so many replicas each, 0 for one that is not shared."""
    devices = tuple(Offered(whole(gpu(n)), count) for n, count in enumerate(replicas))
    return DeviceOffer("nvidia.com/gpu", devices, strategy, fail)


def free_of(offer: DeviceOffer, *free: int) -> list[str]:
    """The last so many ids of each device."""
    return [
        device_id
        for offered, count in zip(offer.devices, free, strict=True)
        for device_id in list(offered.ids())[max(1, offered.replicas) - count :]
    ]


def taken(
    offer: DeviceOffer,
    policy: Policy,
    available: list[str],
    size: int,
    must_include: tuple[str, ...] = (),
) -> dict[int, int]:
    """GPU -> how many of its ids are chosen."""
    chosen = prefer(offer, FLAT, policy, available, must_include, size)
    assert len(chosen) == size
    return dict(Counter(int(offer.devices[offer.owners[i]].device.gpu[4:]) for i in chosen))


# Whole GPUs


def test_whole_gpus_are_chosen_by_their_links_under_any_policy() -> None:
    offer = shared(0, 0, 0, 0, strategy=SharingStrategy.NONE)
    linked = Topology({("GPU-1", "GPU-3"): 300})
    for policy in Policy:
        assert prefer(offer, linked, policy, list(offer.owners), [], 2) == ["GPU-1", "GPU-3"]
        assert prefer(offer, linked, policy, list(offer.owners), [], 1) == ["GPU-0"]
        assert prefer(offer, linked, policy, list(offer.owners), ["GPU-3"], 2) == ["GPU-3", "GPU-1"]


def test_a_dead_gpu_changes_nothing_for_the_others() -> None:
    offer = shared(0, 0, 0, 0, strategy=SharingStrategy.NONE)
    linked = Topology({("GPU-2", "GPU-3"): 300})
    alive = ["GPU-1", "GPU-2", "GPU-3"]
    assert prefer(offer, linked, DISTRIBUTED, alive, [], 2) == ["GPU-2", "GPU-3"]


def test_unshared_gpus_of_a_shared_resource_are_chosen_by_their_links_too() -> None:
    offer = shared(4, 0, 0, 0)
    linked = Topology({("GPU-1", "GPU-3"): 300})
    assert prefer(offer, linked, DISTRIBUTED, ["GPU-1", "GPU-2", "GPU-3"], [], 2) == [
        "GPU-1",
        "GPU-3",
    ]


# Replicas


def test_distributed_takes_from_the_gpu_that_is_used_least() -> None:
    offer = shared(8, 8, 8)
    available = free_of(offer, 4, 6, 5)
    assert taken(offer, DISTRIBUTED, available, 1) == {1: 1}
    assert taken(offer, DISTRIBUTED, available, 3) == {1: 2, 2: 1}


def test_distributed_counts_what_is_used_and_not_what_is_free() -> None:
    offer = shared(2, 8)
    assert taken(offer, DISTRIBUTED, free_of(offer, 2, 7), 1) == {0: 1}


def test_a_tie_goes_to_the_gpu_touched_least_and_then_to_the_lowest_index() -> None:
    offer = shared(4, 4, 4)
    assert taken(offer, DISTRIBUTED, free_of(offer, 4, 4, 4), 2) == {0: 1, 1: 1}
    # GPU 2 is used once after the first pick, as are the others, but was touched.
    available = free_of(offer, 3, 3, 4)
    assert taken(offer, DISTRIBUTED, available, 2) == {2: 1, 0: 1}
    # The lowest index is no reason to take a second one from a GPU that was touched.
    first_free = shared(4, 4)
    assert prefer(first_free, FLAT, DISTRIBUTED, free_of(first_free, 4, 3), [], 2) == [
        "GPU-0::0",
        "GPU-1::1",
    ]


def test_packed_takes_from_the_gpu_that_is_used_most() -> None:
    offer = shared(8, 8, 8)
    available = free_of(offer, 4, 6, 2)
    assert taken(offer, PACKED, available, 2) == {2: 2}
    assert taken(offer, PACKED, available, 3) == {2: 2, 0: 1}


def test_packed_stays_on_the_gpu_that_is_held_where_both_are_used_alike() -> None:
    offer = shared(4, 4)
    assert taken(offer, PACKED, free_of(offer, 3, 4), 2, ("GPU-1::0",)) == {1: 2}


def test_spread_takes_no_second_replica_of_a_gpu_while_there_is_another() -> None:
    offer = shared(8, 8, 8)
    available = free_of(offer, 8, 1, 2)
    assert taken(offer, DISTRIBUTED, available, 3) == {0: 3}
    assert taken(offer, SPREAD, available, 3) == {0: 1, 1: 1, 2: 1}
    assert taken(offer, SPREAD, available, 5) == {0: 2, 1: 1, 2: 2}


def test_spread_counts_what_the_container_holds() -> None:
    offer = shared(8, 8)
    assert taken(offer, SPREAD, free_of(offer, 8, 2), 2, ("GPU-0::0",)) == {0: 1, 1: 1}


def test_replicas_are_taken_in_the_order_of_their_numbers() -> None:
    offer = shared(12)
    available = sorted(offer.owners, reverse=True)
    assert prefer(offer, FLAT, PACKED, available, [], 11) == [f"GPU-0::{n}" for n in range(11)]


# MIG devices


def mig_offer(*counts: int, replicas: int = 0) -> DeviceOffer:
    devices = [d for n, count in enumerate(counts) for d in parts(mig_gpu(n, *[SMALL] * count))]
    return DeviceOffer("nvidia.com/mig-1g.5gb", tuple(Offered(d, replicas) for d in devices))


def test_mig_devices_are_packed_by_the_gpu_they_are_a_part_of() -> None:
    offer = mig_offer(3, 3)
    available = ["MIG-0-0", "MIG-0-1", "MIG-0-2", "MIG-1-1"]
    assert taken(offer, PACKED, available, 1) == {1: 1}
    assert taken(offer, PACKED, available, 2) == {1: 1, 0: 1}
    assert taken(offer, DISTRIBUTED, available, 1) == {0: 1}


def test_replicas_of_mig_devices_are_spread_over_the_parts_of_a_gpu() -> None:
    offer = mig_offer(3, replicas=2)
    available = list(offer.owners)
    for policy in (DISTRIBUTED, SPREAD):
        assert prefer(offer, FLAT, policy, available, [], 3) == [
            "MIG-0-0::0",
            "MIG-0-1::0",
            "MIG-0-2::0",
        ]
    assert prefer(offer, FLAT, PACKED, available, [], 2) == ["MIG-0-0::0", "MIG-0-0::1"]


# What Allocate accepts


def test_several_mps_replicas_come_from_one_gpu() -> None:
    offer = shared(4, 4, 4, strategy=SharingStrategy.MPS)
    available = free_of(offer, 3, 1, 2)
    assert taken(offer, DISTRIBUTED, available, 2) == {0: 2}
    assert taken(offer, SPREAD, available, 2) == {0: 2}
    assert taken(offer, PACKED, available, 2) == {2: 2}
    assert taken(offer, PACKED, available, 1) == {1: 1}


def test_several_mps_replicas_come_from_the_gpu_that_is_held() -> None:
    offer = shared(4, 4, strategy=SharingStrategy.MPS)
    assert taken(offer, DISTRIBUTED, free_of(offer, 4, 2), 2, ("GPU-1::0",)) == {1: 2}


def test_where_no_gpu_has_enough_mps_replicas_it_still_answers_in_full() -> None:
    offer = shared(4, 4, strategy=SharingStrategy.MPS)
    chosen = prefer(offer, FLAT, DISTRIBUTED, free_of(offer, 2, 2), [], 3)
    assert len(chosen) == 3
    with pytest.raises(GrantRefused, match="no single GPU has 3 replicas free"):
        devices_of(offer, chosen)


@pytest.mark.parametrize("strategy", [SharingStrategy.TIME_SLICING, SharingStrategy.MPS])
def test_where_replicas_come_one_at_a_time_a_larger_request_gets_unshared_gpus(
    strategy: SharingStrategy,
) -> None:
    offer = shared(4, 0, 4, 0, strategy=strategy, fail=True)
    assert taken(offer, DISTRIBUTED, list(offer.owners), 2) == {1: 1, 3: 1}


# In general


def test_too_few_are_better_than_none() -> None:
    offer = shared(2, 2)
    assert prefer(offer, FLAT, DISTRIBUTED, ["GPU-1::0"], [], 3) == ["GPU-1::0"]
    assert prefer(offer, FLAT, DISTRIBUTED, [], [], 3) == []


def test_unknown_and_repeated_ids_are_passed_over() -> None:
    offer = shared(2)
    available = ["GPU-0::1", "GPU-9::0", "GPU-0::1", "", "GPU-0"]
    must_include = ["GPU-0::0", "?", "GPU-0::0"]
    assert prefer(offer, FLAT, PACKED, available, must_include, 4) == ["GPU-0::0", "GPU-0::1"]


@pytest.mark.parametrize("size", [-5, 0])
def test_a_request_for_nothing_gets_nothing(size: int) -> None:
    offer = shared(2)
    assert prefer(offer, FLAT, PACKED, list(offer.owners), ["GPU-0::0"], size) == []


@st.composite
def questions(
    draw: st.DrawFn,
) -> tuple[DeviceOffer, Topology, Policy, list[str], list[str], int]:
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    strategy = draw(st.sampled_from([SharingStrategy.TIME_SLICING, SharingStrategy.MPS]))
    offer = shared(*counts, strategy=strategy, fail=draw(st.booleans()))
    known = list(offer.owners)
    available = draw(st.lists(st.sampled_from(known), unique=True))
    must_include = draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    pairs = [(a, b) for a in range(len(counts)) for b in range(a + 1, len(counts))]
    topology = Topology(
        {(f"GPU-{a}", f"GPU-{b}"): draw(st.sampled_from([10, 50, 300])) for a, b in pairs}
    )
    policy = draw(st.sampled_from(Policy))
    return offer, topology, policy, available, must_include, draw(st.integers(0, 40))


@given(questions(), st.data())
def test_an_answer_holds_what_it_must_and_only_what_is_free(
    question: tuple[DeviceOffer, Topology, Policy, list[str], list[str], int], data: st.DataObject
) -> None:
    offer, topology, policy, available, must_include, size = question
    chosen = prefer(*question)
    assert chosen[: len(must_include)] == must_include[:size]
    assert set(chosen) <= set(available)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    shuffled = data.draw(st.permutations(available))
    assert prefer(offer, topology, policy, shuffled, must_include, size) == chosen


@given(questions())
def test_an_answer_is_accepted_whenever_some_answer_would_be(
    question: tuple[DeviceOffer, Topology, Policy, list[str], list[str], int],
) -> None:
    offer, topology, policy, available, _, size = question
    chosen = prefer(offer, topology, policy, available, [], size)
    if len(chosen) < size or not size:
        return
    shared_ids = [i for i in available if offer.devices[offer.owners[i]].replicas]
    unshared = len(available) - len(shared_ids)
    free = Counter(offer.owners[i] for i in shared_ids)
    possible = (
        size == 1
        or unshared >= size
        or (
            not offer.fail_requests_greater_than_one
            and (
                offer.strategy is SharingStrategy.TIME_SLICING
                or any(count >= size for count in free.values())
            )
        )
    )
    try:
        devices_of(offer, chosen)
    except GrantRefused:
        assert not possible
    else:
        assert possible


@given(questions())
def test_spread_never_takes_two_of_a_gpu_while_another_has_one(
    question: tuple[DeviceOffer, Topology, Policy, list[str], list[str], int],
) -> None:
    offer, topology, _, available, _, size = question
    if offer.strategy is SharingStrategy.MPS or offer.fail_requests_greater_than_one:
        return
    counts = Counter(offer.owners[i] for i in prefer(offer, topology, SPREAD, available, [], size))
    untouched = {offer.owners[i] for i in available} - counts.keys()
    assert not untouched or all(count == 1 for count in counts.values())
