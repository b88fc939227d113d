"""Publishes calls of the driver that hang."""

from __future__ import annotations

import asyncio
import contextlib

from gpuslice.codes import Code
from gpuslice.gpus.nvml import Subject
from gpuslice.node.driver import Driver
from gpuslice.node.state import NodeState
from gpuslice.node.triggers import Trigger, Triggers


class HangReporter:
    """A call that hangs is a fault until it returns. Then the GPUs are enumerated again."""

    def __init__(self, driver: Driver, state: NodeState, triggers: Triggers) -> None:
        """Call it on the event loop."""
        self._driver = driver
        self._state = state
        self._triggers = triggers
        self._hanging: frozenset[Subject] = frozenset()
        self._loop = asyncio.get_running_loop()
        driver.report_hangs(self._changed)

    def _changed(self) -> None:
        """In any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._publish)

    def _publish(self) -> None:
        before, self._hanging = self._hanging, self._driver.hanging()
        self._state.replace_faults_of(Code.DRIVER_NOT_RESPONDING, self._driver.hang_faults())
        if before - self._hanging:
            self._triggers.add(Trigger.HARDWARE)
