"""Settings and hardware change in any order; a working state is never replaced by a broken one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.settings import Settings
from gpuslice.node.errors import (
    DriverNotResponding,
    DriverReplaced,
    NoDriver,
    NoGpus,
    ProgramError,
)
from gpuslice.node.snapshot import Problem
from gpuslice.node.triggers import Trigger
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from tests.unit.logged import logged

from .reconciler_rig import ELSEWHERE, GPU, ONE, TWO, Rig, eventually, hardware, run

FAILED = ProgramError(Code.NODE_UNREADABLE, "no")

# Start


def test_a_start_plans_and_applies_and_publishes_the_settings() -> None:
    async def scenario(rig: Rig) -> None:
        assert rig.program.applied == [("/one", 1)]
        assert rig.state.current.settings == ONE
        assert rig.metrics.last_reload_ok

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "problem", "waits"),
    [
        (ONE, NoDriver("x"), False),
        (ONE, NoGpus("x"), False),
        (replace(ONE, fail_on_init_error=False), NoDriver("x"), True),
        (replace(ONE, fail_on_init_error=False), NoGpus("x"), True),
        (replace(ONE, wait_for_devices=True), NoGpus("x"), True),
        (replace(ONE, wait_for_devices=True), NoDriver("x"), False),
    ],
)
def test_a_node_without_gpus_is_waited_for_if_the_settings_say_so(
    settings: Settings, problem: NoGpus, *, waits: bool
) -> None:
    async def main() -> None:
        rig = Rig(settings)
        rig.driver.found["/driver-root"] = problem
        starting = asyncio.create_task(rig.reconciler.start())
        if not waits:
            with pytest.raises(ProgramError, match="x"):
                await starting
            return
        await eventually(lambda: rig.driver.enumerations >= 3)
        rig.driver.found["/driver-root"] = hardware(GPU)
        await asyncio.wait_for(starting, 5)
        assert rig.program.applied == [("/one", 1)]

    asyncio.run(main())


def test_waiting_is_logged_once_and_new_settings_are_loaded_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        rig = Rig(replace(ONE, fail_on_init_error=False))
        rig.driver.found["/driver-root"] = NoGpus("none yet")
        starting = asyncio.create_task(rig.reconciler.start())
        await eventually(lambda: rig.driver.enumerations >= 3)
        assert logged(caplog).count(Code.WAITING_FOR_GPUS) == 1
        rig.settings = ConfigError("x", "y", "z")
        rig.triggers.add(Trigger.SETTINGS)
        await eventually(lambda: bool(rig.problems))
        rig.settings = replace(TWO, fail_on_init_error=False)
        rig.triggers.add(Trigger.SETTINGS)
        await eventually(lambda: not rig.problems)
        rig.driver.found["/driver-root"] = hardware(GPU)
        await asyncio.wait_for(starting, 5)
        assert rig.program.applied == [("/two", 1)]

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [
        SlicingError(Code.CONFLICTING_RULES, "no"),
        FAILED,
        NothingToAdvertise("no"),
    ],
)
def test_settings_that_do_not_fit_the_node_end_the_start(error: Exception) -> None:
    rig = Rig()
    rig.program.plan_errors["/one"] = error
    with pytest.raises(ProgramError, match="no"):
        asyncio.run(rig.reconciler.start())
    rig = Rig()
    rig.program.check_errors["/one"] = FAILED
    with pytest.raises(ProgramError, match="no"):
        asyncio.run(rig.reconciler.start())
    assert rig.program.applied == []


def test_a_wrong_configuration_ends_the_start() -> None:
    rig = Rig()
    rig.settings = ConfigError("field", "value", "remedy")
    with pytest.raises(ConfigError, match="field"):
        asyncio.run(rig.reconciler.start())


def test_a_program_that_works_without_gpus_plans_without_them() -> None:
    async def main() -> None:
        rig = Rig()
        rig.program.gpus_needed = False
        await rig.reconciler.start()
        assert rig.program.applied == [("/one", -1)]
        assert (rig.driver.enumerations, rig.driver.closed) == (0, 1)
        rig = Rig()
        rig.program.tolerates = (NoDriver,)
        rig.driver.found["/driver-root"] = NoDriver("none")
        await rig.reconciler.start()
        assert rig.program.applied == [("/one", -1)]

    asyncio.run(main())


# Changes


def test_new_settings_are_applied_without_a_new_enumeration() -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = TWO
        await rig.trigger(Trigger.SETTINGS)
        assert rig.program.applied == [("/one", 1), ("/two", 1)]
        assert rig.driver.enumerations == 1
        assert rig.state.current.settings == TWO

    run(scenario)


def test_new_hardware_is_applied_without_loading_the_settings() -> None:
    async def scenario(rig: Rig) -> None:
        rig.driver.found["/driver-root"] = hardware(GPU, replace(GPU, uuid="GPU-b", index=1))
        await rig.trigger(Trigger.HARDWARE)
        assert rig.program.applied == [("/one", 1), ("/one", 2)]
        assert (rig.driver.enumerations, rig.loads) == (2, 1)

    run(scenario)


def test_a_reset_does_both_and_resets_the_program_first() -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = TWO
        await rig.trigger(Trigger.RESET)
        assert rig.program.resets == 1
        assert (rig.driver.enumerations, rig.loads) == (2, 2)
        assert rig.program.applied[-1] == ("/two", 1)

    run(scenario)


@pytest.mark.parametrize(
    "breaks",
    [
        lambda rig: setattr(rig, "settings", ConfigError("field", "value", "remedy")),
        lambda rig: rig.program.plan_errors.update({"/two": SlicingError(Code.XID, "no")}),
        lambda rig: rig.program.plan_errors.update({"/two": FAILED}),
        lambda rig: rig.program.plan_errors.update({"/two": NothingToAdvertise("no")}),
        lambda rig: rig.program.check_errors.update({"/two": FAILED}),
    ],
    ids=["invalid", "rules", "node", "nothing", "check"],
)
def test_settings_that_are_rejected_leave_the_last_good_ones_in_force(
    breaks: Callable[[Rig], None],
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = TWO
        breaks(rig)
        for _ in range(2):
            await rig.trigger(Trigger.SETTINGS)
            assert set(rig.program.applied) == {("/one", 1)}
            assert rig.problems == [Code.CONFIGURATION_INVALID]
            assert rig.state.current.settings == ONE
            assert rig.metrics.last_reload_ok is False
        assert rig.program.suspended == []
        rig.settings = ONE
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == []
        assert rig.metrics.last_reload_ok

    run(scenario)


def test_rejected_settings_are_tried_again_when_the_hardware_changes() -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = TWO
        rig.program.plan_errors["/two"] = SlicingError(Code.MIG_NOT_UNIFORM, "no")
        await rig.trigger(Trigger.SETTINGS)
        del rig.program.plan_errors["/two"]
        await rig.trigger(Trigger.HARDWARE)
        assert rig.program.applied[-1] == ("/two", 1)
        assert rig.problems == []

    run(scenario)


def test_settings_that_find_no_gpus_elsewhere_are_rejected() -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = replace(ELSEWHERE, kubelet_socket="/two")
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == [Code.CONFIGURATION_INVALID]
        assert rig.program.applied[-1] == ("/one", 1)
        # The GPUs of the last good settings were enumerated again.
        assert rig.driver.enumerations == 3
        assert rig.program.suspended == []

    run(scenario)


def test_gpus_that_are_gone_suspend_the_program_until_they_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.driver.found["/driver-root"] = NoGpus("gone")
        await rig.trigger(Trigger.HARDWARE)
        assert rig.program.suspended == [(Problem(Code.NODE_UNREADABLE, "gone"), None)]
        assert rig.problems == []
        # The retry comes by itself.
        await rig.trigger()
        await rig.trigger()
        assert logged(caplog).count(Code.RECONCILE_FAILED) == 1
        rig.driver.found["/driver-root"] = hardware(GPU)
        await rig.trigger()
        assert rig.program.applied == [("/one", 1), ("/one", 1)]
        assert Code.RECOVERED in logged(caplog)

    caplog.set_level("INFO")
    run(scenario)


def test_new_settings_are_not_blamed_for_gpus_that_are_gone() -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = TWO
        rig.driver.found["/driver-root"] = NoGpus("gone")
        await rig.trigger(Trigger.SETTINGS, Trigger.HARDWARE)
        assert rig.problems == []
        assert len(rig.program.suspended) == 1
        rig.driver.found["/driver-root"] = hardware(GPU)
        await rig.trigger()
        assert rig.program.applied[-1] == ("/two", 1)

    run(scenario)


def test_an_application_that_fails_is_retried() -> None:
    async def scenario(rig: Rig) -> None:
        rig.settings = TWO
        rig.program.apply_errors.append(FAILED)
        await rig.trigger(Trigger.SETTINGS)
        assert rig.program.applied == [("/one", 1)]
        await rig.trigger()
        assert rig.program.applied == [("/one", 1), ("/two", 1)]

    run(scenario)


def test_a_driver_that_was_replaced_ends_the_program() -> None:
    async def scenario(rig: Rig) -> None:
        rig.driver.found["/driver-root"] = DriverReplaced("restart")
        with pytest.raises(DriverReplaced):
            await rig.trigger(Trigger.HARDWARE)

    run(scenario)


def test_the_same_settings_again_change_nothing_and_count_as_read() -> None:
    async def scenario(rig: Rig) -> None:
        generation = rig.state.current.generation
        await rig.trigger(Trigger.SETTINGS)
        assert rig.state.current.generation == generation
        assert rig.metrics.reloads[True] == 2

    run(scenario)


def test_settings_apply_to_the_known_gpus_while_the_driver_hangs() -> None:
    async def scenario(rig: Rig) -> None:
        rig.driver.found["/driver-root"] = DriverNotResponding("nvmlInit has not returned")
        rig.settings = TWO
        await rig.trigger(Trigger.RESET)
        assert rig.program.applied[-1] == ("/two", 1)
        assert rig.program.suspended == []
        assert rig.problems == []
        rig.driver.found["/driver-root"] = hardware(GPU, replace(GPU, uuid="GPU-b", index=1))
        await rig.trigger(Trigger.HARDWARE)
        assert rig.program.applied[-1] == ("/two", 2)

    run(scenario)


def test_settings_for_another_driver_root_wait_for_a_driver_that_hangs() -> None:
    async def scenario(rig: Rig) -> None:
        rig.driver.found["/elsewhere"] = DriverNotResponding("nvmlInit has not returned")
        rig.settings = ELSEWHERE
        await rig.trigger(Trigger.SETTINGS)
        assert rig.problems == []  # they are not wrong
        assert [problem.code for problem, _ in rig.program.suspended] == [Code.NODE_UNREADABLE]
        rig.driver.found["/elsewhere"] = hardware(GPU, replace(GPU, uuid="GPU-b", index=1))
        await rig.trigger(Trigger.SETTINGS)
        assert rig.program.applied[-1] == (ELSEWHERE.kubelet_socket, 2)

    run(scenario)
