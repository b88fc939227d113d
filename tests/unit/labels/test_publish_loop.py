"""Labels follow the node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from gpuslice.codes import Code
from gpuslice.labels import publish_loop
from gpuslice.labels.errors import NodeUnreadable, PublishError
from gpuslice.labels.publish_loop import LabelLoop
from gpuslice.labels.publishers import Labels
from tests.unit.logged import logged


class RecordingPublisher:
    """Keeps the labels, and fails while it is broken."""

    def __init__(self) -> None:
        self.published: list[Labels] = []
        self.called = asyncio.Event()
        self.is_broken = False

    async def publish(self, labels: Labels) -> bool:
        self.called.set()
        if self.is_broken:
            raise PublishError("the file system is read-only")
        self.published.append(labels)
        return True

    async def withdraw(self) -> None:
        self.published.clear()

    async def next_call(self) -> None:
        async with asyncio.timeout(60):
            await self.called.wait()
        self.called.clear()


@contextlib.asynccontextmanager
async def running(loop: LabelLoop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_labels_are_collected_again_after_the_interval() -> None:
    async def scenario() -> None:
        publisher = RecordingPublisher()
        numbers = iter(range(100))

        async def collect() -> Labels:
            return {"number": str(next(numbers))}

        async with running(LabelLoop(collect, publisher, interval_seconds=0.01)):
            await publisher.next_call()
            await publisher.next_call()
        assert publisher.published[:2] == [{"number": "0"}, {"number": "1"}]

    asyncio.run(scenario())


def test_without_an_interval_labels_are_published_again_when_the_loop_is_woken() -> None:
    async def scenario() -> None:
        publisher = RecordingPublisher()

        async def collect() -> Labels:
            return {}

        loop = LabelLoop(collect, publisher, interval_seconds=None)
        async with running(loop):
            await publisher.next_call()
            await asyncio.sleep(0.05)
            assert len(publisher.published) == 1
            loop.wake()
            await publisher.next_call()
            assert len(publisher.published) == 2

    asyncio.run(scenario())


def test_without_an_interval_a_failure_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_loop, "INTERVAL_SECONDS", 0.01)

    async def scenario() -> None:
        publisher = RecordingPublisher()
        publisher.is_broken = True

        async def collect() -> Labels:
            return {}

        async with running(LabelLoop(collect, publisher, interval_seconds=None)):
            await publisher.next_call()
            publisher.is_broken = False
            await publisher.next_call()
            await asyncio.sleep(0.05)
            assert len(publisher.published) == 1

    asyncio.run(scenario())


def test_a_failure_is_logged_once_and_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        publisher = RecordingPublisher()
        publisher.is_broken = True

        async def collect() -> Labels:
            return {"a/b": "c"}

        loop = LabelLoop(collect, publisher, interval_seconds=0.01)
        async with running(loop):
            for _ in range(3):
                await publisher.next_call()
                loop.wake()
            publisher.is_broken = False
            loop.wake()
            while not publisher.published:
                await publisher.next_call()

    with caplog.at_level(logging.INFO, "gpuslice"):
        asyncio.run(scenario())
    assert logged(caplog).count(Code.LABELS_OUTDATED) == 1
    assert logged(caplog).count(Code.LABELS_CURRENT) == 1


def test_a_node_that_cannot_be_read_keeps_its_labels(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        publisher = RecordingPublisher()
        collected = asyncio.Event()

        async def collect() -> Labels:
            collected.set()
            raise NodeUnreadable("no driver")

        async with running(LabelLoop(collect, publisher, interval_seconds=0.01)):
            await collected.wait()
            await asyncio.sleep(0.05)
        assert not publisher.called.is_set()

    with caplog.at_level(logging.INFO, "gpuslice"):
        asyncio.run(scenario())
    assert logged(caplog) == [Code.LABELS_OUTDATED]
