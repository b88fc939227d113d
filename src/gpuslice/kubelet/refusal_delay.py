"""Slows down pods that fail again and again."""

from __future__ import annotations

import asyncio

# Refusals that are further apart are independent of each other.
_RELATED_SECONDS = 30.0
# The longest delay, as a multiple of the first one.
_LONGEST = 4


class RefusalDelay:
    """Delays every refusal but the first, each twice as long as the one before.

    The kubelet fails a pod whose devices are refused, its controller creates a new pod at once, and
    the scheduler may place that one here as well, until the node's status is up to date. Without a
    delay that makes tens of failed pods per second. The kubelet admits one pod after the other, so
    the delay also holds back other pods of the node, and must be short.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended: float | None = None
        self._delay = 0.0

    async def wait(self) -> None:
        clock = asyncio.get_running_loop().time
        if self._ended is None or clock() - self._ended > _RELATED_SECONDS:
            self._delay = 0.0
        else:
            longest = _LONGEST * self._seconds
            self._delay = min(max(2 * self._delay, self._seconds), longest)
        self._ended = clock() + self._delay
        await asyncio.sleep(self._delay)
