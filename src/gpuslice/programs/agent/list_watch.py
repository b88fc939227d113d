"""Triggers the reconciler when the list of GPUs of a nested node changes.

The container that is the node may write the list line by line, and after the agent has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuslice.node.triggers import Trigger, Triggers


async def watch_list(
    list_changed: Callable[[], bool], triggers: Triggers, interval_seconds: float
) -> None:
    """`list_changed` may block."""
    while True:
        await asyncio.sleep(interval_seconds)
        if await asyncio.to_thread(list_changed):
            triggers.add(Trigger.SETTINGS)
