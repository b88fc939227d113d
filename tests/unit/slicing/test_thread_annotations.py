"""Annotations of a pod that set the share of threads of its containers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.thread_annotations import (
    KEY,
    ThreadAnnotations,
    apply_annotation,
    thread_annotations,
    wanted_threads,
)
from gpuslice.slicing.threads import Multiprocessors, Percent, ThreadAmount, sms_at

POD = {
    "gpuslice.io/threads": "30%",
    "gpuslice.io/threads.side": "5 %",
    "gpuslice.io/threads.sms": "20 SMs",
    "other": "x",
}
# A T4 has 40 SMs.
GPU = Device("GPU-0", "0", "GPU-0", multiprocessors=40)


@pytest.mark.parametrize(
    ("container", "amount"),
    [
        ("main", Percent(30)),
        ("side", Percent(5)),
        ("sms", Multiprocessors(20)),
        (None, Percent(30)),
        ("other", Percent(30)),
    ],
)
def test_the_annotation_of_a_container_takes_precedence_over_that_of_the_pod(
    container: str | None, amount: ThreadAmount
) -> None:
    assert wanted_threads(POD, container) == amount


def test_without_an_annotation_nothing_is_wanted() -> None:
    assert wanted_threads({"gpuslice.io/threads.side": "5%"}, "main") is None
    assert wanted_threads({"gpuslice.io/threads.side": "x"}, None) is None


def test_only_annotations_that_can_apply_are_kept() -> None:
    many = {f"gpuslice.io/threads.x{number}": "1%" for number in range(10_000)}
    long = {
        "gpuslice.io/threads": " " * 100_000 + "5%",
        "gpuslice.io/threads.sms": "30%" + " " * 99,
    }
    kept = thread_annotations(many | POD | long, ["main", "side", "sms"])
    assert set(kept) == {KEY, f"{KEY}.side", f"{KEY}.sms"}
    assert sum(map(len, kept.values())) < 200
    for container in ("main", "sms"):  # shortened ones are not valid
        with pytest.raises(GrantRefused):
            wanted_threads(kept, container)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0%",
        "101%",
        "-1%",
        "30",
        "1e1%",
        "٣%",
        "%",
        "x" * 5000,
        "0 SMs",
        "-2 SMs",
        "2.5 SMs",
        "SM",
    ],
)
def test_another_text_is_refused_with_the_key_and_a_remedy(text: str) -> None:
    with pytest.raises(GrantRefused, match=r"gpuslice\.io/threads: .*: use ") as refused:
        wanted_threads({"gpuslice.io/threads": text}, "main")
    assert refused.value.code is Code.ANNOTATION_INVALID
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("policy", "granted", "wanted", "applied"),
    [
        (ThreadAnnotations.OFF, 40, Percent(10), 40),
        (ThreadAnnotations.LOWER, 40, Percent(10), 10),
        (ThreadAnnotations.LOWER, 40, Percent(90), 40),
        (ThreadAnnotations.LOWER, None, Percent(90), 90),
        (ThreadAnnotations.LOWER, 40, None, 40),
        (ThreadAnnotations.LOWER, 40, Multiprocessors(8), 20),
        (ThreadAnnotations.LOWER, 40, Multiprocessors(20), 40),
        (ThreadAnnotations.LOWER, 40, Multiprocessors(400), 40),
        (ThreadAnnotations.LOWER, None, Multiprocessors(20), 50),
        (ThreadAnnotations.ANY, 40, Percent(90), 90),
        (ThreadAnnotations.ANY, 40, None, 40),
        (ThreadAnnotations.ANY, 40, Multiprocessors(20), 50),
        (ThreadAnnotations.ANY, 40, Multiprocessors(40), 100),
    ],
)
def test_the_policy_decides_what_an_annotation_changes(
    policy: ThreadAnnotations, granted: int | None, wanted: ThreadAmount | None, applied: int
) -> None:
    limits = Limits(1024, granted)
    assert apply_annotation(limits, GPU, wanted, policy) == Limits(1024, applied)


@given(
    sms=st.integers(2, 200),
    wanted=st.integers(1, 200),
    granted=st.none() | st.integers(1, 100),
    policy=st.sampled_from([ThreadAnnotations.LOWER, ThreadAnnotations.ANY]),
)
def test_a_container_gets_no_more_sms_than_it_wants_and_by_lower_no_more_than_it_was_granted(
    sms: int, wanted: int, granted: int | None, policy: ThreadAnnotations
) -> None:
    gpu = replace(GPU, multiprocessors=sms)
    limits = Limits(1024, granted)
    try:
        applied = apply_annotation(limits, gpu, Multiprocessors(wanted), policy).threads_percent
    except GrantRefused:
        assert wanted > sms
        return
    assert applied is not None
    # The driver gives a client at least one TPC, which has two.
    assert sms_at(applied, sms) <= max(2, wanted)
    if policy is ThreadAnnotations.LOWER and granted is not None:
        assert applied <= granted


@pytest.mark.parametrize(
    ("sms", "policy", "remedy"),
    [
        (0, ThreadAnnotations.LOWER, "use a percentage"),
        (0, ThreadAnnotations.ANY, "use a percentage"),
        (18, ThreadAnnotations.ANY, "which has 18: use at most 18 SMs"),
    ],
)
def test_a_gpu_that_cannot_have_this_many_sms_is_refused(
    sms: int, policy: ThreadAnnotations, remedy: str
) -> None:
    gpu = replace(GPU, multiprocessors=sms)
    with pytest.raises(GrantRefused, match=f"20 SMs cannot be applied to GPU 0.*{remedy}") as no:
        apply_annotation(Limits(1024, 40), gpu, Multiprocessors(20), policy)
    assert no.value.code is Code.ANNOTATION_INVALID
