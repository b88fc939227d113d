from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.choice import choose_units
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import grant
from gpuslice.slicing.offer import Offer, cut
from gpuslice.slicing.units import MemoryUnit

from .strategies import offers

GIB = MemoryUnit(1024)


def offer_with_free(*free: int, size: int = 16) -> tuple[Offer, list[str]]:
    """A node of equal GPUs, of which the given numbers of units are free."""
    gpus = [Gpu(f"GPU-{n}", n, n, "Simulated", size * 1024) for n in range(len(free))]
    offer = cut(gpus, GIB)
    available = [
        i
        for sliced, count in zip(offer.gpus, free, strict=True)
        for i in list(sliced.ids())[-count or size :]
    ]
    return offer, available


def gpus_of(offer: Offer, ids: list[str]) -> set[int]:
    return {offer.gpus[offer.owners[i]].gpu.minor for i in ids}


def test_the_gpu_with_the_least_memory_that_fits_is_taken() -> None:
    offer, available = offer_with_free(12, 8, 4, 16)
    assert gpus_of(offer, choose_units(offer, available, [], 8)) == {1}


def test_a_tie_goes_to_the_lowest_minor_number() -> None:
    offer, available = offer_with_free(5, 5)
    assert gpus_of(offer, choose_units(offer, available, [], 2)) == {0}


def test_units_of_an_init_container_keep_the_app_on_the_same_gpu() -> None:
    offer, available = offer_with_free(16, 8)
    held = [next(offer.gpus[0].ids())]
    chosen = choose_units(offer, available, held, 4)
    assert chosen[0] == held[0]
    assert gpus_of(offer, chosen) == {0}
    assert len(chosen) == 4


def test_where_no_gpu_fits_it_still_answers_in_full() -> None:
    offer, available = offer_with_free(3, 4, 2)
    chosen = choose_units(offer, available, [], 6)
    assert len(set(chosen)) == 6
    assert gpus_of(offer, chosen) == {0, 1}


def test_unknown_ids_are_passed_over() -> None:
    offer, available = offer_with_free(4)
    assert gpus_of(offer, choose_units(offer, ["x", *available, "GPU-9-_-1"], ["y"], 2)) == {0}


@given(offers(), st.data())
def test_a_choice_lies_on_one_gpu_whenever_one_has_room(offer: Offer, data: st.DataObject) -> None:
    ids = list(offer.owners)
    available = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    size = data.draw(st.integers(1, 64))
    chosen = choose_units(offer, available, [], size)
    free = dict.fromkeys(range(len(offer.gpus)), 0)
    for device_id in available:
        free[offer.owners[device_id]] += 1
    assert set(chosen) <= set(available)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    if any(units >= size for units in free.values()):
        slice_ = grant(offer, chosen)
        fitting = [units for units in free.values() if units >= size]
        assert free[offer.owners[chosen[0]]] == min(fitting)
        assert slice_.units == size


@given(offers(), st.data())
def test_a_choice_depends_on_the_set_of_ids_not_on_their_order(
    offer: Offer, data: st.DataObject
) -> None:
    ids = list(offer.owners)
    available = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    shuffled = data.draw(st.permutations(available))
    size = data.draw(st.integers(1, 32))
    assert choose_units(offer, available, [], size) == choose_units(offer, shuffled, [], size)


@given(offers(), st.data())
def test_whatever_the_kubelet_picks_an_allocation_never_spans_gpus(
    offer: Offer, data: st.DataObject
) -> None:
    ids = list(offer.owners)
    picked = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True)) if ids else ["x"]
    try:
        slice_ = grant(offer, picked)
    except GrantRefused:
        assert not ids or len(gpus_of(offer, picked)) > 1
    else:
        assert gpus_of(offer, picked) == {slice_.gpu.minor}
        assert slice_.units == len(picked)
