"""The table of static partitions, and how much of a GPU a container gets."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.mps.partitions import Partition, Partitioned, parse_table
from gpuslice.slicing.threads import Threads, ThreadStrategy, share_of_threads, why_no_partitions

GPU = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"
TABLE = """\
GPU                        Partition  Free chunks  Used chunks  Free SMs  Used SMs  Clients
GPU-11111111-2222-3333     -          18           9            72        36        -
GPU-11111111-2222-3333     0100       -            7            -         28        Yes
GPU-11111111-2222-3333     0200       -            2            -         8         -
GPU-99999999-2222-3333     -          27           0            108       0         -
"""


def test_the_rows_of_a_gpu_are_its_own() -> None:
    found = parse_table(TABLE, GPU)
    assert found == Partitioned(
        18, 9, {"0100": Partition(7, in_use=True), "0200": Partition(2, in_use=False)}
    )
    assert found.chunks == 27
    assert parse_table(TABLE, OTHER) == Partitioned(27, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Unknown command",
        "lspart requires a daemon with --static-partitioning",
        "GPU-11111111-2222-3333 - x y 72 36 -",
        f"{TABLE}GPU-11111111-2222-3333 - 1 2 3 4 -\n",
    ],
)
def test_what_is_no_table_of_the_gpu_is_not_used(text: str) -> None:
    assert parse_table(text, GPU) is None


@given(st.text())
def test_any_text_is_a_table_or_none(text: str) -> None:
    parse_table(text, GPU)


@given(units=st.integers(1, 200), count=st.integers(1, 200), chunks=st.integers(1, 40))
def test_a_container_gets_its_part_rounded_down_and_at_least_one_chunk(
    units: int, count: int, chunks: int
) -> None:
    threads = share_of_threads(ThreadStrategy.SM_PARTITION, units, Fraction(1, units), 0)
    assert threads == Threads(Fraction(100, units), partitioned=True)
    assert threads is not None
    found = threads.chunks(min(count, units), chunks)
    assert found == max(1, min(count, units) * chunks // units)
    assert 1 <= found <= chunks


def test_partitions_need_ampere() -> None:
    assert why_no_partitions(ThreadStrategy.SM_PARTITION, (8, 0)) is None
    assert why_no_partitions(ThreadStrategy.PROPORTIONAL, (7, 5)) is None
    assert "this GPU has 7.5" in str(why_no_partitions(ThreadStrategy.SM_PARTITION, (7, 5)))
