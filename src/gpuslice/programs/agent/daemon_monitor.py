"""Probes the MPS control daemons of the node and publishes whether they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.probe import DaemonProbe
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState


@dataclass(frozen=True, slots=True)
class _Monitored:
    probe: DaemonProbe
    # Set after the first probe, when the state has its result.
    is_probed: asyncio.Event = field(default_factory=asyncio.Event)


class DaemonMonitor:
    """One probe per daemon, however many resources depend on it."""

    def __init__(self, tasks: asyncio.TaskGroup, state: NodeState, timing: Timing) -> None:
        self._tasks = tasks
        self._state = state
        self._timing = timing
        self._monitored: dict[str, _Monitored] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def apply(self, daemons: Mapping[str, Daemon]) -> None:
        for name in [n for n, one in self._monitored.items() if daemons.get(n) != one.probe.daemon]:
            self._watches.pop(name).cancel()
            del self._monitored[name]
        self._state.keep_daemons(self._monitored)
        for name, daemon in daemons.items():
            if name not in self._monitored:
                one = _Monitored(DaemonProbe(daemon, self._timing.mps_command))
                self._monitored[name] = one
                self._watches[name] = self._tasks.create_task(
                    self._watch(one), name=f"probe MPS daemon {name}"
                )

    async def first_probes(self, names: Iterable[str]) -> None:
        """Returns when each of these daemons has been probed."""
        for one in [self._monitored[name] for name in names if name in self._monitored]:
            await one.is_probed.wait()

    async def require(self, name: str) -> None:
        """Raises MpsUnavailable unless the daemon answers now."""
        one = self._monitored.get(name)
        if one is None:
            raise MpsUnavailable(f"no MPS control daemon {name} is configured on this node")
        await self._probe(one)
        if one.probe.problem is not None:
            raise one.probe.problem

    async def _watch(self, one: _Monitored) -> None:
        while True:
            await self._probe(one)
            await asyncio.sleep(self._timing.mps_probe)

    async def _probe(self, one: _Monitored) -> None:
        await one.probe.probe()
        name, error = one.probe.daemon.name, one.probe.problem
        if self._monitored.get(name) is one:
            problem = None if error is None else Problem(Code.MPS_UNAVAILABLE, str(error))
            self._state.set_daemon(name, problem)
            one.is_probed.set()
