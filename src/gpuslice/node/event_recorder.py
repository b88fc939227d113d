"""Records problems with the configuration as events of the Node."""

from __future__ import annotations

import asyncio

from gpuslice.cluster.events import Events, EventType
from gpuslice.node.snapshot import Problem, Snapshot


class EventRecorder:
    """A reader of `NodeState`. `run` writes the events: the API server may be slow, or down."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._queue: asyncio.Queue[Problem] = asyncio.Queue()

    def read(self, before: Snapshot, after: Snapshot) -> None:
        for problem in after.config_problems:
            if problem not in before.config_problems:
                self._queue.put_nowait(problem)

    async def run(self) -> None:
        while True:
            problem = await self._queue.get()
            await self._events.record(problem.code, problem.message, EventType.WARNING)
