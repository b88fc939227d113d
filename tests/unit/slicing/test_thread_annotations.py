"""Annotations of a pod that set the share of threads of its containers."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.thread_annotations import (
    ThreadAnnotations,
    apply_annotation,
    wanted_percent,
)

POD = {"gpuslice.io/threads": "30%", "gpuslice.io/threads.side": "5 %", "other": "x"}


@pytest.mark.parametrize(
    ("container", "percent"), [("main", 30), ("side", 5), (None, 30), ("other", 30)]
)
def test_the_annotation_of_a_container_takes_precedence_over_that_of_the_pod(
    container: str | None, percent: int
) -> None:
    assert wanted_percent(POD, container) == percent


def test_without_an_annotation_nothing_is_wanted() -> None:
    assert wanted_percent({"gpuslice.io/threads.side": "5%"}, "main") is None
    assert wanted_percent({"gpuslice.io/threads.side": "x"}, None) is None


@pytest.mark.parametrize("text", ["", "0%", "101%", "-1%", "30", "1e1%", "٣%", "%", "x" * 5000])
def test_another_text_is_refused_with_the_key_and_a_remedy(text: str) -> None:
    with pytest.raises(GrantRefused, match=r"gpuslice\.io/threads: .*use a percentage") as refused:
        wanted_percent({"gpuslice.io/threads": text}, "main")
    assert refused.value.code is Code.ANNOTATION_INVALID
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("policy", "granted", "wanted", "applied"),
    [
        (ThreadAnnotations.OFF, 40, 10, 40),
        (ThreadAnnotations.LOWER, 40, 10, 10),
        (ThreadAnnotations.LOWER, 40, 90, 40),
        (ThreadAnnotations.LOWER, None, 90, 90),
        (ThreadAnnotations.LOWER, 40, None, 40),
        (ThreadAnnotations.ANY, 40, 90, 90),
        (ThreadAnnotations.ANY, 40, None, 40),
    ],
)
def test_the_policy_decides_what_an_annotation_changes(
    policy: ThreadAnnotations, granted: int | None, wanted: int | None, applied: int
) -> None:
    limits = Limits(1024, granted)
    assert apply_annotation(limits, wanted, policy) == Limits(1024, applied)
