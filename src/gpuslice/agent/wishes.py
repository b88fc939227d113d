"""What the agent is asked to do again; however often it is asked meanwhile, once will do."""

from __future__ import annotations

import asyncio
from enum import Enum


class Wish(Enum):
    SETTINGS = "settings"  # they may have changed
    HARDWARE = "hardware"  # there may be other GPUs
    BEGIN_ANEW = "begin anew"  # both, and what is known of GPUs in trouble is forgotten


class Wishes:
    def __init__(self) -> None:
        self._open: set[Wish] = set()
        self._any = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None

    def add(self, wish: Wish) -> None:
        self._open.add(wish)
        self._any.set()

    def add_later(self, wish: Wish, seconds: float) -> None:
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(seconds, self.add, wish)

    async def next(self) -> frozenset[Wish]:
        await self._any.wait()
        return self._take()

    async def within(self, seconds: float) -> frozenset[Wish]:
        """Empty if nothing was wished in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._any.wait()
        except TimeoutError:
            return frozenset()
        return self._take()

    def _take(self) -> frozenset[Wish]:
        self._any.clear()
        wishes, self._open = frozenset(self._open), set()
        return wishes
