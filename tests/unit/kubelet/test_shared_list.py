"""One list of the kubelet for all containers that start at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuslice.kubelet.pod_resources import Holders, PodResources, PodResourcesError, SharedList


class Slow(PodResources):
    """Each list is a number, and ends when it is told to."""

    def __init__(self) -> None:
        super().__init__(Path("unused"))
        self.started = 0
        self.may_end = asyncio.Event()
        self.fails = False

    async def holders(self) -> Holders:
        self.started += 1
        number = self.started
        await self.may_end.wait()
        if self.fails:
            raise PodResourcesError("no")
        return {str(number): ()}


def test_containers_that_start_during_a_list_share_the_next_one() -> None:
    async def scenario() -> None:
        shared, kubelet = SharedList(), Slow()
        first = asyncio.create_task(shared.holders(kubelet))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(shared.holders(kubelet)) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert kubelet.started == 1
        others[0].cancel()
        kubelet.may_end.set()
        assert await first == {"1": ()}
        assert await asyncio.gather(*others[1:]) == [{"2": ()}] * 19
        assert await shared.holders(kubelet) == {"3": ()}

    asyncio.run(scenario())


def test_a_list_that_fails_does_not_affect_the_next_one() -> None:
    async def scenario() -> None:
        shared, kubelet = SharedList(), Slow()
        kubelet.may_end.set()
        kubelet.fails = True
        with pytest.raises(PodResourcesError):
            await shared.holders(kubelet)
        kubelet.fails = False
        assert await shared.holders(kubelet) == {"2": ()}

    asyncio.run(scenario())
