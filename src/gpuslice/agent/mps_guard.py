"""Keeps slices from being used while no MPS daemon would hold their limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

from gpuslice.config.settings import MpsCheck
from gpuslice.mps.control import ControlProgramMissing, MpsUnavailable, ping
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_EVERY_SECONDS = 5.0


class MpsGuard:
    """Asks the daemon for a sign of life, regularly and before every container start."""

    def __init__(self, pipe: str | None, check: MpsCheck) -> None:
        self._pipe = pipe
        self._check = check
        self._trouble: MpsUnavailable | None = None
        self._warned = False
        # What has been seen once can be seen: from then on its silence means that it is gone.
        self._seen_alive = False
        self._looking = asyncio.Lock()
        self._began = -math.inf

    @property
    def active(self) -> bool:
        return self._pipe is not None and self._check is not MpsCheck.OFF

    @property
    def trouble(self) -> MpsUnavailable | None:
        """Why limits would not hold right now."""
        return self._trouble

    async def require(self) -> None:
        """Raises MpsUnavailable unless the daemon answers now."""
        await self.look()
        if self._trouble is not None:
            raise self._trouble

    async def look(self) -> None:
        """Those who ask while a look is under way share the next one, however many they are."""
        if not self.active or self._pipe is None:
            return
        clock = asyncio.get_running_loop().time
        asked = clock()
        async with self._looking:
            if self._began >= asked:
                return
            began, before = clock(), self._trouble
            self._trouble = await self._answer(self._pipe)
            # Only now: a look that was cancelled has shown nothing to those who wait for it.
            self._began = began
        if before is None and self._trouble is not None:
            log.error("MPS does not answer: slices are unhealthy", reason=self._trouble)
        elif before is not None and self._trouble is None:
            log.info("MPS answers again: slices are healthy", pipe=self._pipe)

    async def watch(self, changed: Callable[[], None]) -> None:
        while self.active:
            await self.look()
            changed()
            await asyncio.sleep(_EVERY_SECONDS)

    async def _answer(self, pipe: str) -> MpsUnavailable | None:
        try:
            await ping(pipe)
        except MpsUnavailable as error:
            out_of_sight = isinstance(error, ControlProgramMissing) or not Path(pipe).exists()
            if self._check is MpsCheck.AUTO and out_of_sight and not self._seen_alive:
                self._warn_once(error)
                return None
            return error
        self._seen_alive = True
        return None

    def _warn_once(self, error: MpsUnavailable) -> None:
        if not self._warned:
            self._warned = True
            log.warning("MPS cannot be verified from here, taking it for granted", reason=error)
