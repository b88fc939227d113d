"""Publishes the labels of the node from within the agent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from gpuslice.cluster.client import ApiServer
from gpuslice.config.settings import LabelSettings, Settings
from gpuslice.config.startup_options import LabelsMode, StartupOptions
from gpuslice.gpus.inventory import Platform
from gpuslice.node.driver import Driver
from gpuslice.node.errors import DriverNotResponding
from gpuslice.node.snapshot import Snapshot
from gpuslice.node.state import NodeState

if TYPE_CHECKING:
    from gpuslice.gpus.nvml import Nvml
    from gpuslice.labels.publish_loop import LabelLoop
    from gpuslice.labels.publishers import Labels, NodeLabels, Publisher


class LabelPublisher:
    """A reader of `NodeState`: labels follow the settings, the GPUs and the pools."""

    def __init__(
        self, options: StartupOptions, api: ApiServer | None, driver: Driver, state: NodeState
    ) -> None:
        self._options = options
        self._api = api
        self._driver = driver
        self._state = state
        self._loop: LabelLoop | None = None
        # When the settings last changed, for the label.
        self._timestamp = int(time.time())
        # Set if labels must be published elsewhere or at another interval.
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Call it when the state has settings."""
        if self._options.labels is LabelsMode.OFF:
            return
        unsubscribe = self._state.subscribe(self._read)
        try:
            while True:
                self._moved.clear()
                await self._publish_until_moved()
        finally:
            unsubscribe()

    def _read(self, before: Snapshot, after: Snapshot) -> None:
        if before.settings != after.settings:
            self._timestamp = int(time.time())
            if _labels(before.settings) != _labels(after.settings):
                self._moved.set()
        if self._loop is not None and (_described(before) != _described(after)):
            self._loop.wake()

    async def _publish_until_moved(self) -> None:
        publishing = asyncio.create_task(self._publish(_in_force(self._state.current)))
        moving = asyncio.create_task(self._moved.wait())
        try:
            await asyncio.wait([publishing, moving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            moving.cancel()
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing  # if it failed, the agent fails

    async def _publish(self, settings: Settings) -> None:
        # Imported here: an agent that does not publish labels saves the memory.
        from gpuslice.labels.publish_loop import LabelLoop

        publisher = self._publisher(settings)
        # With `oneshot`, labels still follow changes: the agent runs anyway.
        interval = None if settings.labels.oneshot else settings.labels.sleep_seconds
        self._loop = LabelLoop(self._collect, publisher, interval)
        try:
            await self._loop.run()
        finally:
            # What cannot be removed is overwritten by the next agent. Labels that were to be
            # published once stay.
            with contextlib.suppress(Exception):
                if interval is not None:
                    await publisher.withdraw()

    async def _collect(self) -> Labels:
        from gpuslice.labels.collect import collect_labels
        from gpuslice.labels.errors import NodeUnreadable
        from gpuslice.labels.gpuslice_labels import binding_labels, tier_labels

        snapshot = self._state.current
        settings = _in_force(snapshot)
        timestamp = None if settings.labels.no_timestamp else self._timestamp
        platform, gpus = snapshot.inventory.platform, snapshot.inventory.gpus

        def collect(nvml: Nvml | None) -> Labels:
            if nvml is None and platform is Platform.NVML:
                raise NodeUnreadable("the NVIDIA driver is not loaded")
            labels = collect_labels(nvml, platform, gpus, snapshot.pools, settings, timestamp)
            mode = None if snapshot.binding is None else snapshot.binding.mode
            own = binding_labels(mode, namespaces=snapshot.namespaces) | tier_labels(snapshot.tiers)
            return dict(sorted((labels | own).items()))

        try:
            return await self._driver.read(collect)
        except DriverNotResponding as error:
            raise NodeUnreadable(str(error)) from error

    def _publisher(self, settings: Settings) -> Publisher:
        from gpuslice.labels.publishers import Destination, publisher_for

        destination = Destination(
            self._options.labels,
            settings.labels.output_file,
            self._options.node_name or "",
            self._api.namespace if self._api else "",
            self._options.pod_name,
        )
        return publisher_for(destination, self._node_labels)

    def _node_labels(self) -> NodeLabels:
        from gpuslice.cluster.labels import ClusterLabels

        if self._api is None:
            raise ValueError("labels need the API server, and the options name no node")
        return ClusterLabels(self._api)


def _in_force(snapshot: Snapshot) -> Settings:
    assert snapshot.settings is not None
    return snapshot.settings


def _labels(settings: Settings | None) -> LabelSettings | None:
    return None if settings is None else settings.labels


def _described(one: Snapshot) -> tuple[object, ...]:
    """What labels depend on."""
    return one.settings, one.inventory, one.pools, one.binding, one.namespaces, one.tiers
