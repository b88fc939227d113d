"""Labels of the node, kept true by the agent itself."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.agent.assembly import Assembled
from gpuslice.agent.driver import Driver
from gpuslice.cluster.client import ApiServer
from gpuslice.config.startup_options import LabelsMode, StartupOptions

if TYPE_CHECKING:
    from gpuslice.labels.publish_loop import LabelLoop
    from gpuslice.labels.publishers import Labels, Publisher


class Labelling:
    """Published as the options say; what is labelled is what was last described."""

    def __init__(self, options: StartupOptions, api: ApiServer | None, driver: Driver) -> None:
        self._options = options
        self._api = api
        self._driver = driver
        self._described: Assembled | None = None
        self._loop: LabelLoop | None = None
        self._timestamp = 0
        # Set when labels are to go elsewhere, or at another pace.
        self._moved = asyncio.Event()

    def describe(self, assembled: Assembled) -> None:
        """The timestamp tells when the settings last changed, not when labels were looked at."""
        if self._described is None or self._described.settings != assembled.settings:
            self._timestamp = int(time.time())
        before, self._described = self._described, assembled
        if self._loop is not None:
            self._loop.wake()
        if before is not None and before.settings.labels != assembled.settings.labels:
            self._moved.set()

    async def run(self) -> None:
        if self._options.labels is LabelsMode.OFF:
            return
        while self._described is not None:
            self._moved.clear()
            keeping = asyncio.create_task(self._keep(self._described))
            moving = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait([keeping, moving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                moving.cancel()
                keeping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keeping  # a loop that failed takes the agent with it

    async def _keep(self, assembled: Assembled) -> None:
        # Imported here: an agent that labels nothing does without their memory.
        from gpuslice.labels.errors import LabelsError
        from gpuslice.labels.publish_loop import LabelLoop

        settings = assembled.settings.labels
        publisher = self._publisher(assembled)
        # An agent that was to write once is still told of changes: it is there anyway.
        pause = None if settings.oneshot else settings.sleep_seconds
        self._loop = LabelLoop(self._labels, publisher, pause)
        try:
            await self._loop.run()
        finally:
            # What cannot be taken back, the next agent will write over. Labels that nobody was to
            # keep true stay.
            with contextlib.suppress(LabelsError):
                if pause is not None:
                    await publisher.withdraw()

    async def _labels(self) -> Labels:
        from gpuslice.gpus.node_facts import read_facts
        from gpuslice.gpus.nvml import NvmlError
        from gpuslice.labels.errors import NodeUnreadable
        from gpuslice.labels.labels import labels_of
        from gpuslice.labels.look import Look

        now = self._described
        assert now is not None
        settings, gpus = now.settings, now.node.inventory.gpus
        timestamp = None if settings.labels.no_timestamp else self._timestamp
        if now.node.inventory.stand_ins:
            # What stands for GPUs says nothing of them: they are read in another way for labels.
            return await self._driver.read(lambda _nvml: Look(settings, timestamp).labels())
        try:
            facts = await self._driver.read(
                lambda nvml: (
                    None
                    if nvml is None
                    else read_facts(nvml, gpus, settings.labels.machine_type_file)
                )
            )
        except NvmlError as error:
            raise NodeUnreadable(f"the NVIDIA driver does not answer ({error})") from error
        if facts is None:
            raise NodeUnreadable("the NVIDIA driver is not there at the moment")
        return labels_of(facts, gpus, now.found, settings, timestamp)

    def _publisher(self, assembled: Assembled) -> Publisher:
        from gpuslice.labels.publishers import AsNodeFeature, OnNode, ToFile, ToStream

        if self._options.labels is LabelsMode.FILE:
            file = assembled.settings.labels.output_file
            return ToFile(Path(file)) if file else ToStream(sys.stdout)
        from gpuslice.cluster.labels import ClusterLabels

        node = self._options.node_name
        if self._api is None or node is None:
            raise ValueError("labels go to the API server, and the options name no node")
        labels = ClusterLabels(self._api)
        if self._options.labels is LabelsMode.NODE:
            return OnNode(labels, node)
        return AsNodeFeature(labels, node, self._api.namespace, self._options.pod_name)
