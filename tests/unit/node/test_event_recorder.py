"""Which changes of the node become events."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpuslice.cluster.events import EventType
from gpuslice.codes import Code
from gpuslice.node.event_recorder import EventRecorder
from gpuslice.node.snapshot import Snapshot
from gpuslice.slicing.notice import Notice


class Recorded:
    """Implements `cluster.events.Events`."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def record(self, reason: str, message: str, kind: EventType) -> None:
        del message, kind
        self.reasons.append(reason)


def test_users_of_pods_learn_that_mps_serves_one_user_at_a_time() -> None:
    recorded = Recorded()
    before = Snapshot()
    notices = tuple(Notice(code, "x") for code in (Code.MPS_ONE_USER_AT_A_TIME, Code.NOT_EXCLUSIVE))
    after = replace(before, notices=notices)

    async def scenario() -> None:
        recorder = EventRecorder(recorded)
        recorder.read(before, after)
        recorder.read(after, replace(after, generation=2))  # nothing new
        writing = asyncio.create_task(recorder.run())
        await asyncio.sleep(0.05)
        writing.cancel()

    asyncio.run(scenario())
    assert recorded.reasons == [Code.MPS_ONE_USER_AT_A_TIME]
