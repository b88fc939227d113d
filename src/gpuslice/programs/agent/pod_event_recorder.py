"""Writes events of pods: the API server may be slow, or down."""

from __future__ import annotations

import asyncio

from gpuslice.cluster.events import EventType, PodEvents, PodReference
from gpuslice.codes import Code
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# The log has all of them.
_MOST_WAITING = 100


class PodEventRecorder:
    def __init__(self, events: PodEvents | None) -> None:
        """Without `events`, nothing is recorded."""
        self._events = events
        self._queue: asyncio.Queue[tuple[PodReference, Code, str]] = asyncio.Queue(_MOST_WAITING)

    def add(self, pod: PodReference, code: Code, message: str) -> None:
        """`message` must be the same when the event recurs."""
        if self._events is not None and not self._queue.full():
            self._queue.put_nowait((pod, code, message))

    async def run(self) -> None:
        while self._events is not None:
            pod, code, message = await self._queue.get()
            try:
                await self._events.record(pod, code, message, EventType.WARNING)
            except Exception as error:  # noqa: BLE001 (nothing depends on events)
                log.warning(
                    Code.EVENT_NOT_RECORDED,
                    "cannot record an event of a pod",
                    event_reason=code,
                    reason=f"{type(error).__name__}: {error}",
                )
