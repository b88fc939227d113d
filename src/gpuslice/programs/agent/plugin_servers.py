"""The device plugin servers of the node, one per pool. A reload restarts only what changed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.settings import socket_name
from gpuslice.config.timing import Timing
from gpuslice.files.directory_watch import watch_directory
from gpuslice.kubelet.live_socket import is_served
from gpuslice.kubelet.plugin_server import PluginServer
from gpuslice.kubelet.stale_sockets import remove_stale_sockets
from gpuslice.node.errors import ProgramError
from gpuslice.node.snapshot import Snapshot
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.daemon_monitor import DaemonMonitor
from gpuslice.programs.agent.late_binder import LateBinder
from gpuslice.programs.agent.memory_limiter import MemoryLimiter
from gpuslice.programs.agent.plan import AgentPlan
from gpuslice.programs.agent.pool_plugin import PoolPlugin, pre_start_required
from gpuslice.programs.agent.usage_tracker import UsageTracker
from gpuslice.slicing.pool import Pool
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    plugin: PoolPlugin
    task: asyncio.Task[None]
    # None: the agent does not register.
    server: PluginServer | None


class PluginServers:
    """Each pool has a socket and a registration of its own, so that none waits for another."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        state: NodeState,
        monitor: DaemonMonitor,
        usage: UsageTracker,
        binder: LateBinder,
        limiter: MemoryLimiter,
        metrics: Metrics,
        timing: Timing,
    ) -> None:
        self._tasks = tasks
        self._state = state
        self._monitor = monitor
        self._usage = usage
        self._binder = binder
        self._limiter = limiter
        self._metrics = metrics
        self._timing = timing
        self._running: dict[str, _Running] = {}
        self._kubelet_socket = ""
        self._watching: asyncio.Task[None] | None = None
        state.subscribe(self._refresh)

    async def apply(self, plan: AgentPlan) -> None:
        """Stops servers of withdrawn pools first: a GPU must not be advertised twice."""
        pools = {pool.resource: pool for pool in plan.pools}
        socket = plan.settings.kubelet_socket
        moved = socket != self._kubelet_socket
        kept = {
            name
            for name, running in self._running.items()
            if not moved and name in pools and _can_stay(running.plugin, pools[name], plan)
        }
        for name in [name for name in self._running if name not in kept]:
            await self._stop(name)
        if moved:
            await self._remove_stale_sockets(socket, {socket_name(name) for name in pools})
            self._watch(socket)
        for name in kept:
            self._running[name].plugin.replace(pools[name], plan)
        for name in sorted(pools.keys() - kept):
            self._start(pools[name], plan)

    def check(self, plan: AgentPlan) -> None:
        """Blocks. Raises ProgramError if another process serves a resource that is new here.

        At the start, the server finds out itself, and the agent ends.
        """
        if not self._kubelet_socket:
            return
        directory = Path(self._kubelet_socket).parent
        for resource in (pool.resource for pool in plan.pools):
            if resource not in self._running and is_served(directory / socket_name(resource)):
                raise ProgramError(
                    Code.ALREADY_SERVED,
                    f"another process serves {resource} on {directory / socket_name(resource)}: "
                    "stop it first, or use another resource name",
                )

    def _refresh(self, before: Snapshot, after: Snapshot) -> None:
        """A reader of the node's state: every change of health reaches every stream at once."""
        del before, after
        for running in self._running.values():
            running.plugin.refresh()

    async def _remove_stale_sockets(self, kubelet_socket: str, served: set[str]) -> None:
        """An agent that was killed may have served other resources. Servers replace their own."""
        if not kubelet_socket:
            return
        directory = Path(kubelet_socket).parent
        try:
            removed = await asyncio.to_thread(remove_stale_sockets, directory, served)
        except OSError:
            return  # servers that need the directory or its lock report that
        for name in removed:
            log.info(
                Code.STALE_SOCKET_REMOVED,
                "removed a socket that a killed agent left behind",
                socket=directory / name,
            )

    def _watch(self, kubelet_socket: str) -> None:
        """One inotify watch for all servers: the kernel limits their number."""
        if self._watching is not None:
            self._watching.cancel()
        self._kubelet_socket = kubelet_socket
        if kubelet_socket:
            watch = watch_directory(
                Path(kubelet_socket).parent,
                self._wake,
                resync_seconds=self._timing.directory_resync,
            )
            self._watching = self._tasks.create_task(watch, name="watch the kubelet's directory")

    def _wake(self) -> None:
        for running in self._running.values():
            if running.server is not None:
                running.server.wake()

    def _start(self, pool: Pool, plan: AgentPlan) -> None:
        plugin = PoolPlugin(
            pool, plan, self._state, self._monitor, self._usage, self._binder, self._limiter
        )
        server = None
        if self._kubelet_socket:
            socket = Path(self._kubelet_socket)
            name = socket_name(pool.resource)
            server = PluginServer(plugin, socket, name, self._metrics, self._timing.refusal)
        task = self._tasks.create_task(
            self._serve(plugin, server), name=f"device plugin server {pool.resource}"
        )
        self._running[pool.resource] = _Running(plugin, task, server)

    async def _stop(self, name: str) -> None:
        running = self._running.pop(name)
        running.task.cancel()
        await asyncio.wait([running.task])
        self._metrics.forget(name)

    async def _serve(self, plugin: PoolPlugin, server: PluginServer | None) -> None:
        if server is None:
            return
        # The first list must not contain devices whose limits nothing enforces, and a list that is
        # unhealthy for a moment would fail the admission of pods after a reboot.
        await self._monitor.first_probes(plugin.pool.daemons)
        await server.run()


def _can_stay(plugin: PoolPlugin, pool: Pool, plan: AgentPlan) -> bool:
    """Whether the kubelet learns everything about the new pool from the device list."""
    return pre_start_required(pool, plan) == plugin.pre_start_required
