"""Keeps the labels true: looks at the node again and again and publishes what has changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from gpuslice.labels.errors import LabelsError
from gpuslice.labels.publishers import Labels, Publisher
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

Look = Callable[[], Awaitable[Labels]]

SLEEP_SECONDS = 60.0


class LabelLoop:
    """`look` raises LabelsError where the node cannot be described."""

    def __init__(
        self, look: Look, publisher: Publisher, sleep_seconds: float | None = SLEEP_SECONDS
    ) -> None:
        self._look = look
        self._publisher = publisher
        # None: only when told.
        self._sleep_seconds = sleep_seconds
        self._wanted = asyncio.Event()
        self._trouble = ""

    def wake(self) -> None:
        """Look now; to be called when the GPUs or the settings have changed."""
        self._wanted.set()

    async def once(self) -> None:
        """Raises LabelsError if the labels do not get where they belong."""
        labels = await self._look()
        if await self._publisher.publish(labels):
            log.info("labels published", labels=len(labels))

    async def run(self) -> None:
        """Until cancelled. A failure is told once, and what was published stays as it was."""
        await self._try()
        await self.go_on()

    async def go_on(self) -> None:
        """As `run`, where a first look has been taken."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._try()

    async def _try(self) -> None:
        try:
            await self.once()
        except LabelsError as error:
            self._tell(str(error))
        else:
            self._recovered()

    def _pause(self) -> float | None:
        """After a failure even a loop that sleeps for ever tries again."""
        if self._trouble and self._sleep_seconds is None:
            return SLEEP_SECONDS
        return self._sleep_seconds

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.error("the labels are not up to date", reason=trouble)
        self._trouble = trouble

    def _recovered(self) -> None:
        if self._trouble:
            log.info("the labels are up to date again")
        self._trouble = ""
