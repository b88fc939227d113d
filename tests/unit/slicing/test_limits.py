import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import grant
from gpuslice.slicing.limits import Limits, ThreadShare, limits_of, threads_percent
from gpuslice.slicing.offer import Offer, cut
from gpuslice.slicing.units import MemoryUnit

from .strategies import offers


@pytest.mark.parametrize(
    ("units", "of", "percent"),
    [(1, 15, 6), (2, 15, 13), (3, 15, 20), (15, 15, 100), (100, 16276, 1), (1, 1, 100)],
)
def test_the_share_of_threads_follows_the_memory(units: int, of: int, percent: int) -> None:
    assert threads_percent(units, of) == percent


def test_a_slice_is_held_to_its_memory() -> None:
    offer = cut([Gpu("GPU-aa", 0, 0, "Simulated", 15360)], MemoryUnit(1024))
    six = grant(offer, [f"GPU-aa-_-{n}" for n in range(6)])
    assert limits_of(six, ThreadShare.PROPORTIONAL) == Limits(6144, 40)
    assert limits_of(six, ThreadShare.NONE) == Limits(6144, None)


@given(st.integers(1, 100_000), st.data())
def test_percentages_stay_in_what_mps_accepts(total: int, data: st.DataObject) -> None:
    units = data.draw(st.integers(1, total))
    assert 1 <= threads_percent(units, total) <= 100


@given(offers(), st.data())
def test_the_limits_of_a_full_gpu_sum_to_no_more_than_its_memory(
    offer: Offer, data: st.DataObject
) -> None:
    for sliced in offer.gpus:
        left, total = list(sliced.ids()), 0
        while left:
            size = data.draw(st.integers(1, len(left)))
            taken, left = left[:size], left[size:]
            total += limits_of(grant(offer, taken), ThreadShare.PROPORTIONAL).memory_mib
        assert total <= sliced.gpu.memory_mib
