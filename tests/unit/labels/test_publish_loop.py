"""Labels follow the node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from gpuslice.labels.errors import NodeUnreadable, PublishError
from gpuslice.labels.publish_loop import LabelLoop
from gpuslice.labels.publishers import Labels


class Board:
    """Takes labels, and notes when it was asked."""

    def __init__(self) -> None:
        self.posted: list[Labels] = []
        self.asked = asyncio.Event()
        self.broken = False

    async def publish(self, labels: Labels) -> bool:
        self.asked.set()
        if self.broken:
            raise PublishError("the board is gone")
        self.posted.append(labels)
        return True

    async def withdraw(self) -> None:
        self.posted.clear()


@contextlib.asynccontextmanager
async def running(loop: LabelLoop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def asked(board: Board) -> None:
    async with asyncio.timeout(60):
        await board.asked.wait()
    board.asked.clear()


def test_the_node_is_looked_at_again_after_the_interval() -> None:
    async def scenario() -> None:
        board = Board()
        looks = iter(range(100))

        async def look() -> Labels:
            return {"look": str(next(looks))}

        async with running(LabelLoop(look, board, sleep_seconds=0.01)):
            await asked(board)
            await asked(board)
        assert board.posted[:2] == [{"look": "0"}, {"look": "1"}]

    asyncio.run(scenario())


def test_an_endless_interval_ends_when_the_loop_is_woken() -> None:
    async def scenario() -> None:
        board = Board()

        async def look() -> Labels:
            return {}

        loop = LabelLoop(look, board, sleep_seconds=None)
        async with running(loop):
            await asked(board)
            await asyncio.sleep(0.05)
            assert len(board.posted) == 1
            loop.wake()
            await asked(board)
            assert len(board.posted) == 2

    asyncio.run(scenario())


def test_failures_are_told_once_and_do_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        board = Board()
        board.broken = True

        async def look() -> Labels:
            return {"a/b": "c"}

        loop = LabelLoop(look, board, sleep_seconds=0.01)
        async with running(loop):
            for _ in range(3):
                await asked(board)
                loop.wake()
            board.broken = False
            loop.wake()
            while not board.posted:
                await asked(board)

    with caplog.at_level(logging.INFO, "gpuslice"):
        asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert told.count("the labels are not up to date") == 1
    assert told.count("the labels are up to date again") == 1


def test_a_node_that_cannot_be_read_keeps_its_labels() -> None:
    async def scenario() -> None:
        board = Board()
        looked = asyncio.Event()

        async def look() -> Labels:
            looked.set()
            raise NodeUnreadable("no driver")

        async with running(LabelLoop(look, board, sleep_seconds=0.01)):
            await looked.wait()
            await asyncio.sleep(0.05)
        assert board.posted == []
        with pytest.raises(NodeUnreadable):
            await LabelLoop(look, board).once()

    asyncio.run(scenario())
