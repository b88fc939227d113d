"""How much of a GPU's threads a share stands for, and how the driver rounds it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.threads import (
    Multiprocessors,
    Percent,
    ThreadRule,
    Threads,
    ThreadStrategy,
    percentage_of,
    share_of_threads,
    sms_at,
    why_no_threads,
    why_rounded,
)

# Of the GPUs that MPS can limit, from a Jetson to the largest.
SMS = st.integers(1, 256).map(lambda tpcs: 2 * tpcs)


@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        (ThreadStrategy.PROPORTIONAL, [20, 40, 100]),
        (ThreadStrategy.UNIFORM, [20, 20, 20]),
        (ThreadStrategy.UNIFORM_HALF, [40, 40, 40]),
        (Percent(30), [30, 60, 100]),
        (Multiprocessors(20), [19, 38, 93]),  # 20.52, 41.04 and 100.44 of 108 SMs
    ],
    ids=str,
)
def test_the_limits_of_one_two_and_five_of_five_shares(rule: ThreadRule, limits: list[int]) -> None:
    threads = share_of_threads(rule, 5, Fraction(1, 5), 108)
    assert threads is not None
    assert [threads.times(count) for count in (1, 2, 5)] == limits


def test_without_a_limit_there_is_none() -> None:
    assert share_of_threads(ThreadStrategy.NONE, 5, Fraction(1, 5), 108) is None


@pytest.mark.parametrize("rule", [Percent(30), Multiprocessors(32)], ids=str)
def test_an_explicit_amount_of_a_container_does_not_add_up(rule: ThreadRule) -> None:
    threads = share_of_threads(rule, 15, Fraction(1, 15), 108, per_container=True)
    assert threads is not None
    assert {threads.times(count) for count in range(1, 16)} == {30}


def test_uniform_half_is_never_more_than_the_gpu() -> None:
    threads = share_of_threads(ThreadStrategy.UNIFORM_HALF, 1, Fraction(1), 108)
    assert threads == Threads(Fraction(100), adds_up=False)


@pytest.mark.parametrize(("percentage", "sms"), [(50, 94), (25, 46), (75, 140), (100, 188)])
def test_a_percentage_is_rounded_down_to_whole_tpcs(percentage: int, sms: int) -> None:
    """As NVIDIA measured it on a GPU with 188 SMs."""
    assert sms_at(percentage, 188) == sms


@given(SMS, st.data())
def test_a_number_of_sms_is_reached_where_a_percentage_gives_it(
    sms: int, data: st.DataObject
) -> None:
    wanted = data.draw(st.integers(1, sms))
    percentage = percentage_of(wanted, sms)
    assert 1 <= percentage <= 100
    found = sms_at(percentage, sms)
    reachable = {sms_at(each, sms) for each in range(1, 101)}
    assert found == max((each for each in reachable if each <= wanted), default=min(reachable))
    assert percentage == 1 or sms_at(percentage - 1, sms) < found


@given(st.integers(1, 100).map(lambda tpcs: 2 * tpcs), st.data())
def test_up_to_200_sms_every_even_number_is_exact(sms: int, data: st.DataObject) -> None:
    wanted = 2 * data.draw(st.integers(1, sms // 2))
    assert sms_at(percentage_of(wanted, sms), sms) == wanted


@pytest.mark.parametrize(
    ("rule", "sms", "reason"),
    [
        (Multiprocessors(40), 40, None),
        (Multiprocessors(41), 40, "it has 40 SMs"),
        (Multiprocessors(1), 0, "number of SMs is unknown"),
        (Percent(30), 0, None),
        (ThreadStrategy.UNIFORM, 0, None),
    ],
)
def test_a_gpu_without_that_many_sms_is_skipped(
    rule: ThreadRule, sms: int, reason: str | None
) -> None:
    found = why_no_threads(rule, sms)
    assert (found is None) if reason is None else (reason in (found or ""))


@pytest.mark.parametrize(
    ("rule", "sms", "rounded"),
    [
        (Multiprocessors(20), 108, None),
        (Multiprocessors(21), 108, "it is 20 SMs"),
        (Multiprocessors(1), 108, "it is 2 SMs"),
        (Multiprocessors(108), 108, None),
        (Percent(33), 108, None),
    ],
)
def test_a_number_of_sms_that_mps_rounds_is_reported(
    rule: ThreadRule, sms: int, rounded: str | None
) -> None:
    found = why_rounded(rule, sms)
    assert (found is None) if rounded is None else (rounded in (found or ""))
