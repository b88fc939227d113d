"""Runs the MPS control daemons of a plan, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.mps.daemon_control import Controls
from gpuslice.mps.daemon_paths import ROOT, DaemonPaths, ready_file, started_daemons
from gpuslice.mps.daemon_plan import DaemonPlan, DaemonSpec, can_stay, may_return
from gpuslice.mps.daemon_process import find_process
from gpuslice.mps.default_guard import DefaultGuard, Report
from gpuslice.mps.managed_daemon import ManagedDaemon
from gpuslice.mps.shm import remove_shm, unused_shm
from gpuslice.mps.socket_guard import SocketGuard
from gpuslice.mps.started_marker import StartedMarker
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


class Supervisor:
    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        timing: Timing,
        root: Path = ROOT,
        report: Report = lambda code, message: None,
    ) -> None:
        """`report` records events."""
        self._report = report
        self._tasks = tasks
        self._timing = timing
        self._root = root
        self._managed: dict[str, tuple[ManagedDaemon, asyncio.Task[None]]] = {}
        self._guards: dict[str, list[asyncio.Task[None]]] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._has_stopped_leftovers = False

    async def apply(self, plan: DaemonPlan) -> None:
        """Stops daemons that cannot stay, and starts missing ones. The others continue.

        A daemon that stops waits for its clients. Only daemons that need its GPUs wait for it.
        """
        wanted = {daemon.name: daemon for daemon in plan.daemons}
        leaving: dict[str, frozenset[str]] = {}
        for name, (managed, _) in self._managed.items():
            new = wanted.get(name)
            if new is not None and _can_stay(managed, new, plan):
                managed.want(new, plan.present)
            elif new is not None or not may_return(managed.wanted, plan):
                leaving[name] = frozenset(managed.serves)
        await self._stop_leftovers(wanted)
        missing = [daemon for name, daemon in wanted.items() if name not in self._managed]
        busy = frozenset().union(*leaving.values())
        for daemon in missing:
            if busy.isdisjoint(daemon.gpus):
                self._manage(daemon, plan.present, len(wanted))
        self._update_ready_file()
        await self._stop(list(leaving))
        for name, daemon in wanted.items():
            if name not in self._managed:
                self._manage(daemon, plan.present, len(wanted))
        self._update_ready_file()
        await asyncio.to_thread(self._remove_unused_shm, set(self._managed))

    async def stop(self) -> None:
        """Removes the ready file first: no program must start with daemons that stop."""
        self._is_stopping = True
        self._update_ready_file()
        await self._stop(list(self._managed))

    def _manage(self, daemon: DaemonSpec, present: frozenset[str], daemons: int) -> None:
        paths = DaemonPaths(daemon.name, self._root)
        managed = ManagedDaemon(
            daemon, present, paths, self._update_ready_file, self._timing, daemons
        )
        task = self._tasks.create_task(managed.run(), name=f"MPS daemon of {daemon.name}")
        self._managed[daemon.name] = managed, task
        controls = Controls(str(paths.pipe), self._timing.mps_command)
        seconds = self._timing.mps_daemon_probe
        guards = (
            DefaultGuard(managed, controls, seconds, self._report),
            SocketGuard(managed.sockets, daemon.name, seconds, self._report),
        )
        self._guards[daemon.name] = [self._tasks.create_task(each.run()) for each in guards]

    async def _stop(self, names: Sequence[str]) -> None:
        """If this call is cancelled, the daemons still stop, and another call waits for them."""
        for name in names:
            if name not in self._stops:
                self._stops[name] = asyncio.create_task(self._stop_one(name))
        stops = [self._stops[name] for name in names]
        if stops:
            await asyncio.wait(stops)
        for task in stops:
            task.result()

    async def _stop_one(self, name: str) -> None:
        managed, task = self._managed[name]
        for guard in self._guards.pop(name):
            guard.cancel()
        task.cancel()
        try:
            await asyncio.wait([task])
            await managed.stop()
        finally:
            del self._managed[name], self._stops[name]

    async def _stop_leftovers(self, wanted: Mapping[str, DaemonSpec]) -> None:
        """Daemons that a killed program left behind and that keep GPUs of the wanted ones.

        Others may belong to another program that runs.
        """
        if self._has_stopped_leftovers:
            return
        self._has_stopped_leftovers = True
        needed = {gpu for daemon in wanted.values() for gpu in daemon.gpus}
        found = await asyncio.to_thread(started_daemons, self._root)
        paths = [DaemonPaths(name, self._root) for name in found if name not in wanted]
        serves = [(one, StartedMarker(one).read() or ()) for one in paths]
        await asyncio.gather(
            *(self._stop_leftover(one, gpus) for one, gpus in serves if needed.intersection(gpus))
        )

    async def _stop_leftover(self, paths: DaemonPaths, gpus: tuple[str, ...]) -> None:
        log.warning(
            Code.MPS_REPLACED,
            "stopping an MPS control daemon that a killed program left behind; its clients fail",
            daemon=paths.name,
            gpus=",".join(gpus),
        )
        spec = DaemonSpec(paths.name, gpus, (), limited=False, multi_user=False)
        managed = ManagedDaemon(spec, frozenset(), paths, lambda: None, self._timing, 1)
        managed.inherit()
        await managed.stop()

    def _remove_unused_shm(self, wanted: set[str]) -> None:
        """A program that was killed leaves it behind. Blocks."""
        for name in unused_shm(self._root, wanted):
            paths = DaemonPaths(name, self._root)
            if find_process(paths) is not None:
                continue  # another program may still use it
            try:
                remove_shm(paths)
            except OSError as error:
                log.warning(
                    Code.MPS_SHARED_MEMORY_FAILED,
                    "cannot remove shared memory that is not in use any more",
                    daemon=name,
                    directory=paths.shm,
                    reason=error,
                )

    def _update_ready_file(self) -> None:
        ready = not self._is_stopping and all(
            managed.answers for managed, _ in self._managed.values()
        )
        path = ready_file(self._root)
        try:
            if ready:
                path.touch()
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                Code.MARKER_NOT_WRITTEN,
                "cannot update the ready file",
                file=path,
                reason=error.strerror,
            )


def _can_stay(managed: ManagedDaemon, new: DaemonSpec, plan: DaemonPlan) -> bool:
    """Options of a daemon cannot change while it runs."""
    same = new.partitions == managed.wanted.partitions and managed.namespaces.suit(new)
    return same and can_stay(managed.serves, new.gpus, plan.present)
