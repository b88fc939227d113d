"""Keeps labels current: collects them at an interval and publishes changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from gpuslice.codes import Code
from gpuslice.labels.errors import LabelsError
from gpuslice.labels.publishers import Labels, Publisher
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

Collect = Callable[[], Awaitable[Labels]]

INTERVAL_SECONDS = 60.0

_LABELS = "labels"


class LabelLoop:
    """`collect` raises LabelsError if the node cannot be read."""

    def __init__(
        self,
        collect: Collect,
        publisher: Publisher,
        interval_seconds: float | None = INTERVAL_SECONDS,
    ) -> None:
        self._collect = collect
        self._publisher = publisher
        # None: only after `wake`.
        self._interval_seconds = interval_seconds
        self._wanted = asyncio.Event()
        self._conditions = Conditions(log)

    def wake(self) -> None:
        """Call it when the GPUs or the settings changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled. A failure is logged once, and the published labels stay."""
        while True:
            await self._publish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._delay()):
                    await self._wanted.wait()
            self._wanted.clear()

    async def _publish(self) -> None:
        try:
            await publish(await self._collect(), self._publisher)
        except Exception as error:  # noqa: BLE001 (no label is worth the end of an agent)
            known = isinstance(error, LabelsError)
            reason = error if known else f"{type(error).__name__}: {error}"
            self._conditions.set(_LABELS, Code.LABELS_OUTDATED, "labels are outdated", reason)
        else:
            self._conditions.clear(_LABELS, Code.LABELS_CURRENT, "labels are current again")

    def _delay(self) -> float | None:
        """After a failure, labels that are published once are retried as well."""
        if _LABELS in self._conditions and self._interval_seconds is None:
            return INTERVAL_SECONDS
        return self._interval_seconds


async def publish(labels: Labels, publisher: Publisher) -> None:
    """Raises PublishError."""
    if await publisher.publish(labels):
        log.info(Code.LABELS_PUBLISHED, "published labels", labels=len(labels))
