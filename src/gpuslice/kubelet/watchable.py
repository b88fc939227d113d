"""A value that many readers watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_NOTHING = object()


class Watchable(Generic[T]):
    """The newest value, and a wake-up for every reader that has not seen it.

    A queue would make slow readers step through stale values and would need one queue per reader;
    an asyncio.Condition needs its lock held to set a value. Here readers skip what they missed.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._replaced = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        if value == self._value:
            return
        self._value = value
        self.wake()

    def wake(self) -> None:
        """Makes readers check whether to stop."""
        replaced, self._replaced = self._replaced, asyncio.Event()
        replaced.set()

    async def watch(self, until: Callable[[], bool] = lambda: False) -> AsyncIterator[T]:
        """Yields the current value, then every newer one that is still the newest when read."""
        seen: object = _NOTHING
        while not until():
            replaced = self._replaced
            if self._value is not seen:
                seen = self._value
                yield self._value
            await replaced.wait()
