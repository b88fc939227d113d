"""A lasting condition is logged when it begins, changes and ends."""

from __future__ import annotations

import logging

import pytest

from gpuslice.codes import Code
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel
from tests.unit.logged import fields, logged


@pytest.fixture
def conditions(caplog: pytest.LogCaptureFixture) -> Conditions:
    caplog.set_level(logging.INFO, "gpuslice")
    return Conditions(Logger("gpuslice.x"))


def unavailable(conditions: Conditions, reason: object = "timeout", subject: str = "a") -> bool:
    return conditions.set(
        subject, Code.MPS_UNAVAILABLE, "no answer", reason, level=LogLevel.WARNING, daemon=subject
    )


def test_a_condition_that_lasts_is_logged_once(
    conditions: Conditions, caplog: pytest.LogCaptureFixture
) -> None:
    assert unavailable(conditions)
    assert not unavailable(conditions)
    assert "a" in conditions
    assert fields(caplog, Code.MPS_UNAVAILABLE) == {"daemon": "a", "reason": "timeout"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_another_reason_or_code_is_logged_again(
    conditions: Conditions, caplog: pytest.LogCaptureFixture
) -> None:
    unavailable(conditions)
    assert unavailable(conditions, OSError("refused"))
    assert conditions.set("a", Code.MPS_OUTDATED, "outdated", OSError("refused"))
    assert logged(caplog) == [Code.MPS_UNAVAILABLE, Code.MPS_UNAVAILABLE, Code.MPS_OUTDATED]


def test_subjects_are_independent(conditions: Conditions, caplog: pytest.LogCaptureFixture) -> None:
    assert unavailable(conditions, subject="a")
    assert unavailable(conditions, subject="b")
    assert conditions.clear("a", Code.MPS_AVAILABLE, "answers again", daemon="a")
    assert "a" not in conditions
    assert "b" in conditions
    assert logged(caplog)[-1] is Code.MPS_AVAILABLE


def test_the_end_is_logged_only_if_there_was_a_condition(
    conditions: Conditions, caplog: pytest.LogCaptureFixture
) -> None:
    assert not conditions.clear("a", Code.MPS_AVAILABLE, "answers again")
    unavailable(conditions)
    assert conditions.clear("a")
    assert not conditions.clear("a", Code.MPS_AVAILABLE, "answers again")
    assert logged(caplog) == [Code.MPS_UNAVAILABLE]
    assert unavailable(conditions)
