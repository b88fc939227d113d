"""Records problems, for example with the configuration, as events of the Node."""

from __future__ import annotations

import asyncio

from gpuslice.cluster.events import Events, EventType
from gpuslice.codes import Code
from gpuslice.node.snapshot import Problem, Snapshot
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# Edits while the API server is down. The log has all of them.
_MOST_WAITING = 100
# Notices that users of pods must know, and not only the operator of the node.
_NOTICES = (Code.MPS_ONE_USER_AT_A_TIME,)


class EventRecorder:
    """A reader of `NodeState`. `run` writes the events: the API server may be slow, or down."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._queue: asyncio.Queue[Problem] = asyncio.Queue(_MOST_WAITING)

    def add(self, problem: Problem) -> None:
        if not self._queue.full():
            self._queue.put_nowait(problem)

    def read(self, before: Snapshot, after: Snapshot) -> None:
        for problem in after.config_problems:
            if problem not in before.config_problems:
                self.add(problem)
        for notice in after.notices:
            if notice.code in _NOTICES and notice not in before.notices:
                self.add(Problem(notice.code, notice.message))

    async def run(self) -> None:
        while True:
            problem = await self._queue.get()
            try:
                await self._events.record(problem.code, problem.message, EventType.WARNING)
            except Exception as error:  # noqa: BLE001 (nothing depends on events)
                log.warning(
                    Code.EVENT_NOT_RECORDED,
                    "cannot record an event of the node",
                    event_reason=problem.code,
                    reason=f"{type(error).__name__}: {error}",
                )
