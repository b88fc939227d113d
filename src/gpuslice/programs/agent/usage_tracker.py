"""Publishes which devices containers hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.kubelet.pod_resources import PodResources, PodResourcesError, pod_resources_socket
from gpuslice.node.state import NodeState
from gpuslice.node.usage import Usage
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

_POD_RESOURCES = "pod resources"


class UsageTracker:
    """The kubelet has no call for a container that ends, so its list is polled."""

    def __init__(self, state: NodeState, poll_seconds: float) -> None:
        self._state = state
        self._poll_seconds = poll_seconds
        self._usage = Usage()
        self._conditions = Conditions(log)

    def allocated(self, resource: str, ids: Iterable[str]) -> None:
        self._usage.allocated(resource, ids)
        # Soon, not now: a container waits for the answer.
        asyncio.get_running_loop().call_soon(self._publish)

    def available(self, resource: str, ids: Collection[str]) -> None:
        """The kubelet regards these devices as free."""
        if self._usage.available(resource, ids):
            asyncio.get_running_loop().call_soon(self._publish)

    async def run(self, kubelet_socket: Callable[[], str]) -> None:
        """Polls the kubelet of this socket until cancelled; an empty socket means none."""
        while True:
            socket = kubelet_socket()
            if socket:
                await self._poll(PodResources(pod_resources_socket(Path(socket))))
            await asyncio.sleep(self._poll_seconds)

    async def _poll(self, pod_resources: PodResources) -> None:
        self._usage.list_started()
        try:
            self._usage.listed(await pod_resources.devices_in_use())
        except PodResourcesError as error:
            self._usage.unknown()
            self._conditions.set(
                _POD_RESOURCES,
                Code.USAGE_UNKNOWN,
                "cannot read which devices are in use",
                error,
                level=LogLevel.INFO,
            )
        else:
            self._conditions.clear(
                _POD_RESOURCES, Code.USAGE_KNOWN, "devices in use are known again"
            )
        self._publish()

    def _publish(self) -> None:
        self._state.publish(replace(self._state.current, in_use=self._usage.in_use))
