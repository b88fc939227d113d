"""Probes the MPS control daemons of the node and publishes whether they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.probe import DaemonProbe
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState


class DaemonMonitor:
    """One probe per daemon, however many resources depend on it."""

    def __init__(self, tasks: asyncio.TaskGroup, state: NodeState, timing: Timing) -> None:
        self._tasks = tasks
        self._state = state
        self._timing = timing
        self._probes: dict[str, DaemonProbe] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}

    def apply(self, daemons: Mapping[str, Daemon]) -> None:
        for name in [n for n, probe in self._probes.items() if daemons.get(n) != probe.daemon]:
            self._watching.pop(name).cancel()
            del self._probes[name]
        self._state.keep_daemons(self._probes)
        for name, daemon in daemons.items():
            if name not in self._probes:
                self._probes[name] = DaemonProbe(daemon, self._timing.mps_command)
                self._watching[name] = self._tasks.create_task(
                    self._watch(self._probes[name]), name=f"probe MPS daemon {name}"
                )

    async def probe(self, names: Iterable[str]) -> None:
        """Returns when each of these daemons has been probed after this call."""
        probes = [self._probes[name] for name in names if name in self._probes]
        await asyncio.gather(*map(self._probe, probes))

    async def require(self, name: str) -> None:
        """Raises MpsUnavailable unless the daemon answers now."""
        probe = self._probes.get(name)
        if probe is None:
            raise MpsUnavailable(f"no MPS control daemon {name} is configured on this node")
        await self._probe(probe)
        if probe.problem is not None:
            raise probe.problem

    async def _watch(self, probe: DaemonProbe) -> None:
        while True:
            await self._probe(probe)
            await asyncio.sleep(self._timing.mps_probe)

    async def _probe(self, probe: DaemonProbe) -> None:
        await probe.probe()
        if self._probes.get(probe.daemon.name) is probe:
            error = probe.problem
            problem = None if error is None else Problem(Code.MPS_UNAVAILABLE, str(error))
            self._state.set_daemon(probe.daemon.name, problem)
