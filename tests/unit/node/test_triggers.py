"""However often something is wished for, it is done once."""

from __future__ import annotations

import asyncio

from gpuslice.agent.wishes import Wish, Wishes


def test_wishes_of_the_meantime_are_fulfilled_together() -> None:
    async def scenario() -> None:
        wishes = Wishes()
        for wish in (Wish.SETTINGS, Wish.HARDWARE, Wish.SETTINGS):
            wishes.add(wish)
        assert await wishes.next() == {Wish.SETTINGS, Wish.HARDWARE}
        assert await wishes.within(0.0) == frozenset()

    asyncio.run(scenario())


def test_one_who_waits_hears_a_wish_at_once() -> None:
    async def scenario() -> None:
        wishes = Wishes()
        waiting = asyncio.create_task(wishes.within(30))
        await asyncio.sleep(0)
        wishes.add(Wish.BEGIN_ANEW)
        assert await asyncio.wait_for(waiting, 5) == {Wish.BEGIN_ANEW}

    asyncio.run(scenario())


def test_a_later_wish_comes_by_itself_and_the_last_delay_counts() -> None:
    async def scenario() -> None:
        wishes = Wishes()
        wishes.add_later(Wish.HARDWARE, 30)
        wishes.add_later(Wish.HARDWARE, 0.01)
        assert await asyncio.wait_for(wishes.next(), 5) == {Wish.HARDWARE}
        assert await wishes.within(0.03) == frozenset()

    asyncio.run(scenario())
