"""The reconciler, whatever happens while a configuration is loaded, planned or applied."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from gpuslice.codes import Code
from gpuslice.node.errors import DriverReplaced, ProgramError
from gpuslice.node.time_limit import TimeLimit
from gpuslice.node.triggers import Trigger

from .reconciler_rig import ONE, TWO, Rig, eventually, run

UNEXPECTED = [
    KeyError("zz"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    OSError(36, "File name too long"),
    ValueError("embedded null byte"),
    MemoryError(),
    RecursionError(),
    AssertionError("\ud800"),
]


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_whatever_loading_raises_leaves_the_last_good_settings_in_force(error: Exception) -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = error
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == [Code.CONFIGURATION_INVALID]
        assert type(error).__name__ in rig.state.current.config_problems[0].message
        rig.state.current.config_problems[0].message.encode()
        assert rig.metrics.last_reload_ok is False
        assert rig.program.applied[-1] == ("/one", 1)
        assert not rig.program.suspended
        rig.settings = TWO
        await rig.trigger(Trigger.SETTINGS)
        assert rig.program.applied[-1] == ("/two", 1)
        assert rig.problems == []
        assert rig.metrics.last_reload_ok

    run(scenario)


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", ["plan", "check", "apply"])
def test_whatever_new_settings_raise_later_leaves_the_last_good_ones_in_force(
    stage: str, error: Exception
) -> None:
    async def scenario(rig: Rig) -> None:
        program = rig.program
        if stage == "apply":
            program.apply_errors.append(error)
        else:
            {"plan": program.plan_errors, "check": program.check_errors}[stage]["/two"] = error
        rig.settings = TWO
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == [Code.CONFIGURATION_INVALID]
        assert rig.metrics.last_reload_ok is False
        assert program.applied == [("/one", 1), ("/one", 1)]
        assert not program.suspended

    run(scenario)


def test_an_unexpected_error_with_the_last_good_settings_is_retried() -> None:
    async def scenario(rig: Rig) -> None:
        rig.program.apply_errors.append(KeyError("zz"))
        await rig.trigger(Trigger.HARDWARE)
        assert len(rig.program.suspended) == 1
        await rig.trigger()  # the retry
        assert rig.program.applied == [("/one", 1), ("/one", 1)]

    run(scenario)


def test_a_driver_that_was_replaced_still_ends_the_program() -> None:
    async def scenario(rig: Rig) -> None:
        rig.driver.found["/driver-root"] = DriverReplaced("replaced")
        with pytest.raises(DriverReplaced):
            await rig.trigger(Trigger.HARDWARE)

    run(scenario)


def test_a_plan_that_hangs_is_rejected_after_the_time_limit() -> None:
    async def scenario(rig: Rig) -> None:
        rig.program.hanging["/two"] = threading.Event()
        rig.settings = TWO
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == [Code.CONFIGURATION_INVALID]
        assert "not finished after 0.2 s" in rig.state.current.config_problems[0].message
        assert rig.program.applied == [("/one", 1), ("/one", 1)]
        rig.program.hanging["/two"].set()
        rig.settings = ONE
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == []

    run(scenario, check_seconds=0.2)


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_at_the_start_an_unexpected_error_is_one_sentence(error: Exception) -> None:
    async def main() -> None:
        rig = Rig()
        rig.settings = error
        with pytest.raises(ProgramError, match=type(error).__name__) as found:
            await rig.reconciler.start()
        assert found.value.code is Code.CONFIGURATION_INVALID

    asyncio.run(main())


def test_work_that_hangs_occupies_one_thread_only() -> None:
    async def main() -> None:
        release, before = threading.Event(), threading.active_count()
        limit = TimeLimit(0.05)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await limit.run(release.wait)
        assert threading.active_count() == before + 1
        release.set()
        await eventually(lambda: threading.active_count() == before)
        assert await limit.run(lambda: 7) == 7

    asyncio.run(asyncio.wait_for(main(), 60))


def test_work_that_fails_leaves_nothing_in_memory() -> None:
    """The data of a rejected file can be larger than the whole agent."""

    class Data:
        pass

    left: list[weakref.ref[Data]] = []

    def work() -> None:
        data = Data()
        left.append(weakref.ref(data))
        raise ValueError

    async def scenario() -> None:
        limit = TimeLimit(90)
        with contextlib.suppress(ValueError):
            await limit.run(work)
        await asyncio.sleep(0)
        assert left[0]() is None

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
