"""Puts sockets of a daemon back that a container deleted or replaced."""

from __future__ import annotations

import asyncio

from gpuslice.codes import Code
from gpuslice.mps.default_guard import Report
from gpuslice.mps.kept_sockets import KeptSockets
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

_SOCKETS = "sockets"


class SocketGuard:
    def __init__(self, sockets: KeptSockets, name: str, seconds: float, report: Report) -> None:
        self._sockets = sockets
        self._name = name
        self._seconds = seconds
        self._report = report
        self._conditions = Conditions(log)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.check()

    async def check(self) -> None:
        try:
            restored = await self._sockets.restore()
        except OSError as error:
            self._conditions.set(
                _SOCKETS,
                Code.MPS_SOCKETS_RESTORED,
                "cannot put the sockets of the MPS control daemon back, retrying",
                error,
                level=LogLevel.WARNING,
                daemon=self._name,
            )
            return
        self._conditions.clear(_SOCKETS)
        if not restored:
            return
        log.warning(
            Code.MPS_SOCKETS_RESTORED,
            "a container deleted or replaced sockets of the MPS control daemon, they are put back",
            daemon=self._name,
            sockets=",".join(restored),
        )
        self._report(
            Code.MPS_SOCKETS_RESTORED,
            "a container deleted or replaced sockets of the MPS control daemon of "
            f"{self._name}: set mps.pipeReadOnly to prevent it",
        )
