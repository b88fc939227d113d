"""Slows down pods that fail again and again."""

from __future__ import annotations

import asyncio

# Refusals that are further apart are independent of each other.
_RELATED_SECONDS = 30.0


class RefusalDelay:
    """Delays every refusal but the first.

    The kubelet fails a pod whose devices are refused, its controller creates a new pod at once, and
    the scheduler may place that one here as well, until the node's status is up to date. Without a
    delay that makes tens of failed pods per second. The kubelet admits one pod after the other, so
    the delay also holds back other pods of the node, and must be short.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: float | None = None

    async def wait(self) -> None:
        clock = asyncio.get_running_loop().time
        last, self._last = self._last, clock()
        if last is not None and clock() - last < _RELATED_SECONDS:
            await asyncio.sleep(self._seconds)
            self._last = clock()
