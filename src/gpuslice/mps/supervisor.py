"""The MPS daemons of a node: as many as the plan has, and none that it has not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gpuslice.mps.daemon_paths import ROOT, DaemonPaths, ready_file
from gpuslice.mps.daemon_plan import MpsPlan, Wanted, still_serves
from gpuslice.mps.managed_daemon import ManagedDaemon
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


class Supervisor:
    def __init__(self, tasks: asyncio.TaskGroup, root: Path = ROOT) -> None:
        self._tasks = tasks
        self._root = root
        self._kept: dict[str, tuple[ManagedDaemon, asyncio.Task[None]]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    async def apply(self, plan: MpsPlan) -> None:
        """Ends what is not wanted as it is, then starts what is missing; the rest goes on."""
        wanted = {daemon.resource: daemon for daemon in plan.daemons}
        going = []
        for resource, (keeper, _) in self._kept.items():
            new = wanted.get(resource)
            if new is not None and still_serves(keeper.serves, new.gpus, plan.present):
                keeper.want(new, plan.present)
            else:
                going.append(resource)
        await self._end(going)
        for resource, daemon in wanted.items():
            if resource not in self._kept:
                self._keep(daemon, plan.present)
        self._mark_ready()

    async def stop(self) -> None:
        """Nobody is to begin with what ends now, so the sign that all is ready goes first."""
        self._stopping = True
        self._mark_ready()
        await self._end(list(self._kept))

    def _keep(self, daemon: Wanted, present: frozenset[str]) -> None:
        place = DaemonPaths(daemon.resource, self._root)
        keeper = ManagedDaemon(daemon, present, place, self._mark_ready)
        name = f"MPS daemon of {daemon.resource}"
        self._kept[daemon.resource] = keeper, self._tasks.create_task(keeper.run(), name=name)

    async def _end(self, resources: Sequence[str]) -> None:
        """Who is interrupted here may call again: what is being ended goes on to its end."""
        for resource in resources:
            if resource not in self._ending:
                self._ending[resource] = asyncio.create_task(self._retire(resource))
        going = [self._ending[resource] for resource in resources]
        if going:
            await asyncio.wait(going)
        for task in going:
            task.result()

    async def _retire(self, resource: str) -> None:
        """It is ours until it has ended: nobody else would end it."""
        keeper, task = self._kept[resource]
        task.cancel()
        try:
            await asyncio.wait([task])
            await keeper.end()
        finally:
            del self._kept[resource], self._ending[resource]

    def _mark_ready(self) -> None:
        ready = not self._stopping and all(keeper.answers for keeper, _ in self._kept.values())
        path = ready_file(self._root)
        try:
            if ready:
                path.touch()
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a mark cannot be set", file=path, reason=error.strerror)
