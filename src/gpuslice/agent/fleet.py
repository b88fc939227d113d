"""All resources of the node as the kubelet sees them; only what changed is served anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.resource import Plan, PlannedResource
from gpuslice.config.settings import socket_name
from gpuslice.files.directory_watch import watch_directory
from gpuslice.kubelet.plugin_server import Endpoint
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    resource: PlannedResource[Any]
    task: asyncio.Task[None]
    # None where nobody is to register.
    endpoint: Endpoint | None


class Fleet:
    """Serves each resource on its own socket, so that none waits for another."""

    def __init__(self, tasks: asyncio.TaskGroup, health: NodeHealth, metrics: Metrics) -> None:
        self._tasks = tasks
        self._health = health
        self._metrics = metrics
        self._running: dict[str, _Running] = {}
        self._kubelet_socket = ""
        self._watching: asyncio.Task[None] | None = None

    async def apply(self, plans: Mapping[str, Plan], kubelet_socket: str) -> None:
        """Resources that are gone end first: a GPU must not be on offer twice."""
        moved = kubelet_socket != self._kubelet_socket
        kept = {
            name: running
            for name, running in self._running.items()
            if not moved and name in plans and running.resource.takes(plans[name])
        }
        for name, running in list(self._running.items()):
            if name not in kept:
                await self._end(name, running)
        if moved:
            self._watch(kubelet_socket)
        for name, running in kept.items():
            running.resource.replace_plan(plans[name])
        for name in sorted(plans.keys() - kept.keys()):
            self._begin(plans[name])
        self._count()

    def refresh(self) -> None:
        """After a change of health: every stream of every resource hears of it at once."""
        for running in self._running.values():
            running.resource.refresh()
        self._count()

    def _watch(self, kubelet_socket: str) -> None:
        """One watch for all: the kernel has few to give."""
        if self._watching is not None:
            self._watching.cancel()
        self._kubelet_socket = kubelet_socket
        if kubelet_socket:
            watch = watch_directory(Path(kubelet_socket).parent, self._wake)
            self._watching = self._tasks.create_task(watch, name="watch the kubelet")

    def _wake(self) -> None:
        for running in self._running.values():
            if running.endpoint is not None:
                running.endpoint.wake()

    def _begin(self, plan: Plan) -> None:
        resource = plan.serve(self._health)
        endpoint = None
        if self._kubelet_socket:
            socket = Path(self._kubelet_socket)
            endpoint = Endpoint(resource, socket, socket_name(resource.name), self._metrics)
        task = self._tasks.create_task(self._serve(resource, endpoint), name=f"serve {plan.name}")
        self._running[plan.name] = _Running(resource, task, endpoint)

    async def _end(self, name: str, running: _Running) -> None:
        log.info("no longer offered", resource=name)
        running.task.cancel()
        await asyncio.wait([running.task])
        del self._running[name]
        self._metrics.forget(name)

    async def _serve(self, resource: PlannedResource[Any], endpoint: Endpoint | None) -> None:
        # Before anything is offered: the first list must not promise limits that nobody holds.
        await resource.guard.look()
        resource.refresh()

        def changed() -> None:
            resource.refresh()
            self._count()

        async with asyncio.TaskGroup() as parts:
            if endpoint is not None:
                parts.create_task(endpoint.run())
            parts.create_task(resource.guard.watch(changed))

    def _count(self) -> None:
        for name, running in self._running.items():
            self._metrics.devices(name, *running.resource.healthy_devices())
