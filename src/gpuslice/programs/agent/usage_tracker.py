"""Publishes which devices containers hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.kubelet.pod_resources import PodResources, PodResourcesError, pod_resources_socket
from gpuslice.node.state import NodeState
from gpuslice.node.usage import Usage
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

_POD_RESOURCES = "pod resources"
# The kubelet does not answer while it restarts. What it listed before is true until then.
_FAILURES_UNTIL_UNKNOWN = 5
# A list with tens of thousands of devices is read less often: it takes this share of the time.
_LARGEST_LOAD = 0.05


class UsageTracker:
    """The kubelet has no call for a container that ends, so its list is polled."""

    def __init__(self, state: NodeState, timing: Timing, kubelet_socket: Callable[[], str]) -> None:
        self._state = state
        self._poll_seconds = timing.usage_poll
        self._settle_seconds = timing.usage_settle
        # An empty one means that there is no kubelet.
        self._kubelet_socket = kubelet_socket
        self._usage = Usage()
        self._failures = 0
        self._conditions = Conditions(log)
        self._reading = asyncio.Lock()
        self._publish_at = 0.0
        self._publishing: asyncio.TimerHandle | None = None

    def allocated(self, resource: str, ids: Iterable[str]) -> None:
        self._usage.allocated(resource, ids)
        self._admitting()

    def available(self, resource: str, ids: Collection[str]) -> None:
        """The kubelet regards these devices as free."""
        self._usage.available(resource, ids)
        self._admitting()

    async def run(self) -> None:
        """Polls the kubelet until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await self.read()
            await asyncio.sleep(max(self._poll_seconds, (clock() - began) / _LARGEST_LOAD))

    async def read(self) -> None:
        """Reads the kubelet's list now. A kubelet that does not answer is no error."""
        socket = self._kubelet_socket()
        if not socket:
            return
        async with self._reading:
            await self._read(PodResources(pod_resources_socket(Path(socket))))

    async def _read(self, pod_resources: PodResources) -> None:
        self._usage.list_started()
        try:
            self._usage.listed(await pod_resources.devices_in_use())
        except PodResourcesError as error:
            self._failed(error)
        else:
            self._failures = 0
            self._conditions.clear(
                _POD_RESOURCES, Code.USAGE_KNOWN, "devices in use are known again"
            )
        self._publish()

    def _failed(self, error: PodResourcesError) -> None:
        self._failures += 1
        if self._failures >= _FAILURES_UNTIL_UNKNOWN:
            self._usage.unknown()
        if self._usage.in_use is None:
            self._conditions.set(
                _POD_RESOURCES,
                Code.USAGE_UNKNOWN,
                "cannot read which devices are in use, so all free devices are advertised",
                error,
                level=LogLevel.INFO,
            )

    def _admitting(self) -> None:
        """The kubelet allocates devices, and maybe more for the next container of the same pod.

        A container can reuse the devices of an init container, together with more devices of the
        same GPU. These must not be withheld in between.
        """
        self._publish_at = asyncio.get_running_loop().time() + self._settle_seconds
        self._publish()

    def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        if loop.time() < self._publish_at:
            self._publishing = loop.call_at(self._publish_at, self._publish)
            return
        self._state.publish(replace(self._state.current, in_use=self._usage.in_use))
