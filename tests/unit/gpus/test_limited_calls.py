"""Calls that do not return."""

from __future__ import annotations

import threading
import time

import pytest

from gpuslice.gpus.nvml import DriverHangs, LimitedCalls, Limits, NvmlError

QUICK = Limits(answer=0.1, opening=0.1)
PATIENCE_SECONDS = 30.0


def eventually(calls: LimitedCalls, hanging: dict[int | None, str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while calls.hanging() != hanging:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def answer() -> int:
    return 42


def test_a_call_that_returns_is_answered_or_raises() -> None:
    calls = LimitedCalls()
    assert calls.of(0)(answer) == 42
    with pytest.raises(ZeroDivisionError):
        calls.of(0)(divmod, 1, 0)
    assert calls.hanging() == {}
    assert not calls.busy()


def test_further_calls_about_a_gpu_that_hangs_fail_at_once_and_others_do_not() -> None:
    changes: list[dict[int | None, str]] = []
    calls = LimitedCalls(QUICK, lambda: changes.append(calls.hanging()))
    ended = threading.Event()
    with pytest.raises(DriverHangs):
        calls.of(0)(ended.wait)
    assert calls.busy()
    threads = threading.active_count()
    for _ in range(100):
        with pytest.raises(DriverHangs, match="wait has not returned"):
            calls.of(0)(answer)
    assert threading.active_count() == threads
    assert calls.of(1)(answer) == 42
    assert calls.of(None)(answer) == 42
    ended.set()
    eventually(calls, {})
    assert calls.of(0)(answer) == 42
    assert changes == [{0: "wait"}, {}]


def test_all_calls_fail_at_once_while_one_about_the_driver_hangs() -> None:
    calls = LimitedCalls(QUICK)
    ended = threading.Event()
    with pytest.raises(DriverHangs):
        calls.of(None)(ended.wait)
    with pytest.raises(DriverHangs):
        calls.of(3)(answer)
    ended.set()
    eventually(calls, {})
    assert calls.of(3)(answer) == 42


def test_a_hang_ends_when_every_call_of_it_has_returned() -> None:
    changes: list[dict[int | None, str]] = []
    calls = LimitedCalls(QUICK, lambda: changes.append(calls.hanging()))
    ends = [threading.Event(), threading.Event()]

    def hang(end: threading.Event) -> None:
        with pytest.raises(DriverHangs):
            calls.of(None)(end.wait)

    threads = [threading.Thread(target=hang, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    ends[0].set()
    with pytest.raises(DriverHangs):
        calls.of(None)(answer)
    ends[1].set()
    eventually(calls, {})
    assert changes == [{None: "wait"}, {}]


def test_threads_are_used_again() -> None:
    calls = LimitedCalls()
    calls.of(0)(answer)
    threads = threading.active_count()
    for _ in range(100):
        calls.of(0)(answer)
    assert threading.active_count() == threads


def test_text_that_is_not_utf_8_is_an_error_of_nvml() -> None:
    def name() -> str:
        return b"Tesla \xff".decode()

    with pytest.raises(NvmlError, match="not UTF-8"):
        LimitedCalls().of(0)(name)
