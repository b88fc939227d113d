"""Memory of a GPU that no unit contains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.reserve import MPS_SERVER_MIB, reserve_mib
from gpuslice.slicing.rules import MemoryRule

AUTO = MemoryRule(reserve_mib=None, limited=True)


def gpu(memory_mib: int, reserved_mib: int | None) -> Gpu:
    return Gpu(
        "GPU-0", 0, 0, "T4", memory_mib, compute_capability=(7, 5), reserved_mib=reserved_mib
    )


@pytest.mark.parametrize(
    ("memory_mib", "driver_mib", "reserve", "units"),
    [
        (15360, 444, 1024, 14),  # T4
        (32768, 266, 1024, 31),  # V100
        (46068, 628, 1280, 43),  # L40S
        (81920, 669, 1280, 78),  # A100
        (81559, 551, 1280, 78),  # H100
        (15360, None, 1024, 14),  # a driver that does not tell
    ],
)
def test_what_the_driver_and_the_mps_server_need_is_reserved(
    memory_mib: int, driver_mib: int | None, reserve: int, units: int
) -> None:
    one = gpu(memory_mib, driver_mib)
    assert reserve_mib(one, AUTO) == reserve
    pool, _ = memory_pool([one], AUTO)
    assert pool is not None
    assert pool.count == units


def test_memory_that_is_only_counted_counts_as_a_whole() -> None:
    assert reserve_mib(gpu(15360, 444), MemoryRule(reserve_mib=None)) == 0


def test_a_size_applies_as_it_is() -> None:
    assert reserve_mib(gpu(15360, 444), MemoryRule(reserve_mib=100, limited=True)) == 100


@given(st.integers(0, 4096))
def test_every_slice_of_a_full_gpu_reaches_its_limit(driver_mib: int) -> None:
    one = gpu(81920, driver_mib)
    pool, _ = memory_pool([one], AUTO)
    assert pool is not None
    assert pool.count * 1024 + driver_mib + MPS_SERVER_MIB <= one.memory_mib


def test_a_gpu_that_is_too_small_names_the_reserve() -> None:
    pool, notices = memory_pool([gpu(2002, 100)], AUTO)
    assert pool is not None
    assert pool.count == 1
    pool, [notice] = memory_pool([gpu(1500, 100)], AUTO)
    assert pool is None
    assert "of which 768 MiB are reserved" in notice.message
    assert notices == []
