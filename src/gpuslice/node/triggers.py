"""Why the reconciler runs again. Any number of equal triggers cause one run."""

from __future__ import annotations

import asyncio
from enum import Enum


class Trigger(Enum):
    SETTINGS = "settings"  # the configuration may have changed, or a retry is due
    HARDWARE = "hardware"  # the GPUs may have changed
    PLAN = "plan"  # a part of the last plan could not be applied
    RESET = "reset"  # an operator requests both, and known faults are dropped


class Triggers:
    def __init__(self) -> None:
        self._pending: set[Trigger] = set()
        self._any = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, trigger: Trigger) -> None:
        self._pending.add(trigger)
        self._any.set()

    def add_later(self, trigger: Trigger, seconds: float) -> None:
        """Replaces an earlier call whose time has not come."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.add, trigger)

    async def wait(self) -> frozenset[Trigger]:
        await self._any.wait()
        return self._take()

    async def wait_for(self, seconds: float) -> frozenset[Trigger]:
        """Empty if nothing happens in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._any.wait()
        except TimeoutError:
            return frozenset()
        return self._take()

    def _take(self) -> frozenset[Trigger]:
        self._any.clear()
        triggers, self._pending = frozenset(self._pending), set()
        return triggers
