"""Any number of triggers cause one run of the reconciler."""

from __future__ import annotations

import asyncio

from gpuslice.node.triggers import Trigger, Triggers


def test_triggers_are_collected_until_somebody_waits() -> None:
    async def scenario() -> None:
        triggers = Triggers()
        for trigger in (Trigger.SETTINGS, Trigger.HARDWARE, Trigger.SETTINGS):
            triggers.add(trigger)
        assert await triggers.wait() == {Trigger.SETTINGS, Trigger.HARDWARE}
        assert await triggers.wait_for(0.0) == frozenset()

    asyncio.run(scenario())


def test_a_trigger_ends_the_wait_at_once() -> None:
    async def scenario() -> None:
        triggers = Triggers()
        waiting = asyncio.create_task(triggers.wait_for(30))
        await asyncio.sleep(0)
        triggers.add(Trigger.RESET)
        assert await asyncio.wait_for(waiting, 5) == {Trigger.RESET}

    asyncio.run(scenario())


def test_a_later_trigger_comes_by_itself_and_the_last_delay_counts() -> None:
    async def scenario() -> None:
        triggers = Triggers()
        triggers.add_later(Trigger.HARDWARE, 30)
        triggers.add_later(Trigger.HARDWARE, 0.01)
        assert await asyncio.wait_for(triggers.wait(), 5) == {Trigger.HARDWARE}
        assert await triggers.wait_for(0.03) == frozenset()

    asyncio.run(scenario())
