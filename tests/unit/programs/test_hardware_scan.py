"""When a scan of the GPUs triggers the reconciler, and what it logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.node.driver import Driver
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.programs.hardware_scan import scan_for_changes
from tests.unit.logged import logged


class FakeDriver(Driver):
    """Finds these changes, one after the other, and then nothing."""

    def __init__(self, *found: tuple[str, ...]) -> None:
        super().__init__(Timing())
        self._found = list(found)
        self.is_done = asyncio.Event()

    async def changes(self) -> tuple[str, ...]:
        if not self._found:
            self.is_done.set()
            return ()
        return self._found.pop(0)


async def scan(driver: FakeDriver, *awaited: Path) -> frozenset[Trigger]:
    """The triggers after the last scan; empty if there are none."""
    triggers = Triggers()
    scanning = asyncio.create_task(scan_for_changes(driver, triggers, 0, lambda: awaited))
    await asyncio.wait_for(driver.is_done.wait(), 30)
    scanning.cancel()
    return await triggers.wait_for(0)


def test_changes_trigger_the_reconciler_and_the_same_changes_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    added, removed = ("a GPU was added",), ("a GPU was removed",)

    async def main() -> None:
        driver = FakeDriver(added, added, removed, (), removed)
        assert await scan(driver) == {Trigger.HARDWARE}

    caplog.set_level("INFO")
    asyncio.run(main())
    assert logged(caplog) == [Code.HARDWARE_CHANGED] * 3


def test_a_scan_without_changes_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        assert await scan(FakeDriver((), ())) == frozenset()

    caplog.set_level("INFO")
    asyncio.run(main())
    assert logged(caplog) == []


def test_a_device_node_that_appears_triggers_the_reconciler(tmp_path: Path) -> None:
    async def main() -> None:
        assert await scan(FakeDriver(()), tmp_path / "missing") == frozenset()
        assert await scan(FakeDriver(()), tmp_path) == {Trigger.HARDWARE}

    asyncio.run(main())
