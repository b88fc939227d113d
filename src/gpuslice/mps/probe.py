"""Probes one MPS control daemon."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.settings import MpsCheck, MpsNamespaces
from gpuslice.mps.control import DriverProgramMissing, MpsUnavailable
from gpuslice.mps.daemon_control import Controls
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.namespace_marker import NamespaceMarker
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)


class DaemonProbe:
    """The answer to the last probe, and a way to get a new one."""

    def __init__(self, daemon: Daemon, timeout_seconds: float) -> None:
        self.daemon = daemon
        self._controls = Controls(daemon.pipe, timeout_seconds)
        self._namespaces = NamespaceMarker(daemon.namespaces) if daemon.namespaces else None
        # Why the daemon does not enforce limits now; None: it does.
        self.problem: MpsUnavailable | None = None
        self._conditions = Conditions(log)
        # A daemon that has answered is reachable, so it is down if it does not answer later.
        self._has_answered = False
        self._probing = asyncio.Lock()
        self._started_at = -math.inf

    async def probe(self) -> None:
        """Callers that arrive during a probe share the next one, however many they are."""
        if self.daemon.check is MpsCheck.OFF:
            return
        clock = asyncio.get_running_loop().time
        called_at = clock()
        async with self._probing:
            if self._started_at >= called_at:
                return
            started_at = clock()
            self.problem = await self._answer()
            # Only now: a cancelled probe has no result for other callers.
            self._started_at = started_at

    async def _answer(self) -> MpsUnavailable | None:
        daemon = self.daemon
        if daemon.draining is not None and daemon.draining.exists():
            return MpsUnavailable(
                f"the MPS control daemon at {daemon.pipe} is about to stop and takes no new clients"
            )
        try:
            await self._controls.of(namespaces=self._has_namespaces()).ping()
        except MpsUnavailable as error:
            invisible = isinstance(error, DriverProgramMissing) or (not Path(daemon.pipe).exists())
            if daemon.check is MpsCheck.AUTO and invisible and not self._has_answered:
                self._conditions.set(
                    daemon.name,
                    Code.MPS_NOT_VERIFIED,
                    "cannot probe the MPS control daemon in this container, assuming it runs",
                    error,
                    level=LogLevel.WARNING,
                    daemon=daemon.name,
                )
                return None
            return error
        self._has_answered = True
        return None

    def _has_namespaces(self) -> bool:
        """Raises MpsUnavailable if containers cannot use the daemon for that reason."""
        daemon = self.daemon
        if self._namespaces is None:
            return False
        if not self._namespaces.exists:
            if daemon.namespace_use is MpsNamespaces.REQUIRE:
                raise MpsUnavailable(
                    f"the MPS control daemon at {daemon.pipe} has no namespaces, and "
                    "mps-namespaces is require: check the log of gpuslice mps"
                )
            return False
        if daemon.namespace_use is MpsNamespaces.OFF:
            raise MpsUnavailable(
                f"the MPS control daemon at {daemon.pipe} has namespaces, and this agent does not "
                "use them: set mps-namespaces and bind to the same values for the agent and for "
                "gpuslice mps"
            )
        if not self._namespaces.is_ready:
            raise MpsUnavailable(f"the MPS control daemon at {daemon.pipe} is starting")
        return True
