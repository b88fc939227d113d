import asyncio

from gpuslice.kubelet.watchable import Watchable


def test_a_follower_sees_the_present_value_and_every_newer_one() -> None:
    async def scenario() -> list[int]:
        latest, seen = Watchable(1), []
        async for value in latest.watch():
            seen.append(value)
            if value == 3:
                return seen
            latest.set(value + 1)
        raise AssertionError

    assert asyncio.run(scenario()) == [1, 2, 3]


def test_a_slow_follower_skips_what_it_missed() -> None:
    async def scenario() -> tuple[int, int]:
        latest = Watchable(1)
        follower = latest.watch()
        first = await anext(follower)
        latest.set(2)
        latest.set(3)
        return first, await anext(follower)

    assert asyncio.run(scenario()) == (1, 3)


def test_an_equal_value_wakes_nobody() -> None:
    async def scenario() -> bool:
        latest = Watchable(b"same")
        follower = latest.watch()
        await anext(follower)
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        latest.set(b"same")
        await asyncio.sleep(0)
        idle = not waiting.done()
        waiting.cancel()
        return idle

    assert asyncio.run(scenario())


def test_every_follower_is_woken() -> None:
    async def scenario() -> list[int]:
        latest = Watchable(0)
        followers = [latest.watch() for _ in range(3)]
        for follower in followers:
            await anext(follower)
        waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
        await asyncio.sleep(0)
        latest.set(7)
        return await asyncio.gather(*waiting)

    assert asyncio.run(scenario()) == [7, 7, 7]
