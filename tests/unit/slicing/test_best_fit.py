from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.best_fit import best_fit
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import grant
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule

from .strategies import memory_pools


def pool_with_free(*free: int, size: int = 16) -> tuple[Pool, list[str]]:
    """A node of equal GPUs, of which the given numbers of units are free."""
    gpus = [Gpu(f"GPU-{n}", n, n, "Simulated", size * 1024) for n in range(len(free))]
    pool, _ = memory_pool(gpus, MemoryRule())
    assert pool is not None
    available = [
        i
        for part, count in zip(pool.parts, free, strict=True)
        for i in list(part.ids)[-count or size :]
    ]
    return pool, available


def gpus_of(pool: Pool, ids: list[str]) -> set[int]:
    return {pool.parts[pool.owners[i]].device.minor or 0 for i in ids}


def test_the_gpu_with_the_least_memory_that_fits_is_taken() -> None:
    pool, available = pool_with_free(12, 8, 4, 16)
    assert gpus_of(pool, best_fit(pool, available, [], 8)) == {1}


def test_a_tie_goes_to_the_lowest_minor_number() -> None:
    pool, available = pool_with_free(5, 5)
    assert gpus_of(pool, best_fit(pool, available, [], 2)) == {0}


def test_units_of_an_init_container_keep_the_app_on_the_same_gpu() -> None:
    pool, available = pool_with_free(16, 8)
    held = [next(iter(pool.parts[0].ids))]
    chosen = best_fit(pool, available, held, 4)
    assert chosen[0] == held[0]
    assert gpus_of(pool, chosen) == {0}
    assert len(chosen) == 4


def test_where_no_gpu_fits_it_still_answers_in_full() -> None:
    pool, available = pool_with_free(3, 4, 2)
    chosen = best_fit(pool, available, [], 6)
    assert len(set(chosen)) == 6
    assert gpus_of(pool, chosen) == {0, 1}


def test_unknown_ids_are_passed_over() -> None:
    pool, available = pool_with_free(4)
    assert gpus_of(pool, best_fit(pool, ["x", *available, "GPU-9-_-1"], ["y"], 2)) == {0}


@given(memory_pools(), st.data())
def test_a_choice_lies_on_one_gpu_whenever_one_has_room(pool: Pool, data: st.DataObject) -> None:
    ids = list(pool.owners)
    available = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    size = data.draw(st.integers(1, 64))
    chosen = best_fit(pool, available, [], size)
    free = dict.fromkeys(range(len(pool.parts)), 0)
    for device_id in available:
        free[pool.owners[device_id]] += 1
    assert set(chosen) <= set(available)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    if any(units >= size for units in free.values()):
        granted = grant(pool, chosen)
        fitting = [units for units in free.values() if units >= size]
        assert free[pool.owners[chosen[0]]] == min(fitting)
        assert granted.count == size


@given(memory_pools(), st.data())
def test_a_choice_depends_on_the_set_of_ids_not_on_their_order(
    pool: Pool, data: st.DataObject
) -> None:
    ids = list(pool.owners)
    available = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    shuffled = data.draw(st.permutations(available))
    size = data.draw(st.integers(1, 32))
    assert best_fit(pool, available, [], size) == best_fit(pool, shuffled, [], size)


@given(memory_pools(), st.data())
def test_whatever_the_kubelet_picks_an_allocation_never_spans_gpus(
    pool: Pool, data: st.DataObject
) -> None:
    ids = list(pool.owners)
    picked = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True)) if ids else ["x"]
    try:
        granted = grant(pool, picked)
    except GrantRefused:
        assert not ids or len(gpus_of(pool, picked)) > 1
    else:
        assert gpus_of(pool, picked) == {granted.parts[0].part.device.minor}
        assert granted.count == len(picked)
