"""A program that reads its configuration when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from gpuslice.cluster.events import NodeEvents, NoEvents
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.event_recorder import EventRecorder
from gpuslice.node.state import NodeState
from gpuslice.programs.api_server import connect_if_needed
from gpuslice.telemetry.metrics import Recorder
from tests.unit.cluster.kubernetes import Kubernetes

LABEL = "nvidia.com/device-plugin.config"


class Reader:
    """What an agent reads when it is told to."""

    def __init__(self, source: ConfigSource, metrics: Recorder, state: NodeState) -> None:
        self.source = source
        self.metrics = metrics
        self.state = state
        self.first: Path | None = None
        self.read: list[str] = []

    def changed(self) -> None:
        path = self.source.current
        self.read.append("" if path is None else path.read_text())

    async def until(self, *read: str) -> None:
        await eventually(lambda: self.read == list(read), lambda: self.read)


async def eventually(holds: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    for _ in range(4500):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come to pass: {what()}")


@contextlib.asynccontextmanager
async def reading(options: StartupOptions, label_timeout: float = 10.0) -> AsyncIterator[Reader]:
    api = connect_if_needed(options)
    metrics, state = Recorder(), NodeState()
    recorder = EventRecorder(NodeEvents(api, options.node_name or "") if api else NoEvents())
    state.subscribe(recorder.read)
    source = ConfigSource(options, api, state, metrics, Timing(node_label=label_timeout))
    reader = Reader(source, metrics, state)
    try:
        reader.first = await source.first()
        task = asyncio.gather(source.run(reader.changed), recorder.run())
        # The watch begins in a thread.
        await asyncio.sleep(0.3)
        yield reader
        task.cancel()
        await asyncio.wait([task])
    finally:
        if api:
            await api.close()


def run(
    options: StartupOptions,
    scenario: Callable[[Reader], Awaitable[None]],
    label_timeout: float = 10.0,
) -> None:
    async def main() -> None:
        async with reading(options, label_timeout) as reader:
            await scenario(reader)

    asyncio.run(main())


def set_label(kubernetes: Kubernetes, value: str | None) -> None:
    labels = {} if value is None else {LABEL: value}
    kubernetes.put("nodes", "n1", metadata={"labels": labels})
