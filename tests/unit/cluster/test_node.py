from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpuslice.cluster.client import ApiServer, connect
from gpuslice.cluster.node import watch_label
from gpuslice.codes import Code
from tests.unit.logged import logged

from .kubernetes import Kubernetes

LABEL = "nvidia.com/config"


class Follower:
    """Collects the values of the label."""

    def __init__(self, api: ApiServer) -> None:
        self.values: list[str | None] = []
        self._task = asyncio.create_task(self._follow(api))

    async def _follow(self, api: ApiServer) -> None:
        async with contextlib.aclosing(watch_label(api, "n1", LABEL)) as labels:
            async for value in labels:
                self.values.append(value)

    async def until(self, *values: str | None) -> None:
        await eventually(lambda: self.values == list(values), lambda: self.values)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def eventually(
    holds: Callable[[], bool], what: Callable[[], object] = lambda: "", seconds: float = 90
) -> None:
    for _ in range(int(seconds * 50)):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come to pass: {what()}")


@contextlib.asynccontextmanager
async def following(kubernetes: Kubernetes, directory: Path) -> AsyncIterator[Follower]:
    api = connect(kubernetes.kubeconfig(directory / "kubeconfig"))
    follower = Follower(api)
    try:
        yield follower
    finally:
        await follower.end()
        await api.close()


Scenario = Callable[[Callable[[Follower], Awaitable[None]]], None]


@pytest.fixture
def follow(kubernetes: Kubernetes, tmp_path: Path) -> Scenario:
    def run(scenario: Callable[[Follower], Awaitable[None]]) -> None:
        async def main() -> None:
            async with following(kubernetes, tmp_path) as follower:
                await scenario(follower)

        asyncio.run(main())

    return run


def test_the_label_and_each_change_of_it_are_reported(
    kubernetes: Kubernetes, follow: Scenario
) -> None:
    kubernetes.label("n1", config="a")

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.label("n1", config="b")
        await follower.until("a", "b")
        kubernetes.label("n1")
        await follower.until("a", "b", None)

    follow(scenario)


def test_other_changes_of_the_node_are_ignored(kubernetes: Kubernetes, follow: Scenario) -> None:
    kubernetes.label("n1", config="a")

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.label("n1", config="a", other="x")
        kubernetes.label("n1", config="b", other="x")
        await follower.until("a", "b")

    follow(scenario)


def test_only_the_own_node_is_requested(kubernetes: Kubernetes, follow: Scenario) -> None:
    kubernetes.label("n2", config="other")

    async def scenario(follower: Follower) -> None:
        await follower.until(None)
        await eventually(lambda: len(kubernetes.watches) == 1)
        assert kubernetes.watches[0]["fieldSelector"] == "metadata.name=n1"

    follow(scenario)


def test_a_node_that_registers_later_is_followed(kubernetes: Kubernetes, follow: Scenario) -> None:
    async def scenario(follower: Follower) -> None:
        await follower.until(None)
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.label("n1", config="a")
        await follower.until(None, "a")

    follow(scenario)


def test_the_last_label_of_a_deleted_node_is_kept(kubernetes: Kubernetes, follow: Scenario) -> None:
    kubernetes.label("n1", config="a")

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.delete("nodes", "n1")
        kubernetes.forget_history()
        kubernetes.drop_watches()
        await eventually(lambda: kubernetes.count(r"GET /api/v1/nodes\?fieldSelector") >= 2)
        kubernetes.label("n1", config="b")
        await follower.until("a", "b")

    follow(scenario)


def test_a_watch_that_ends_is_started_again(kubernetes: Kubernetes, follow: Scenario) -> None:
    kubernetes.label("n1", config="a")

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.drop_watches()
        await eventually(lambda: len(kubernetes.watches) == 2 and kubernetes.watching == 1)
        kubernetes.label("n1", config="b")
        await follower.until("a", "b")

    follow(scenario)


def test_an_expired_resource_version_is_listed_again(
    kubernetes: Kubernetes, follow: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.label("n1", config="a")

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.forget_history()
        kubernetes.drop_watches()
        await eventually(lambda: kubernetes.count(r"GET /api/v1/nodes\?fieldSelector") >= 2)
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.label("n1", config="b")
        await follower.until("a", "b")

    follow(scenario)
    assert not caplog.records


def test_while_the_api_server_is_down_the_last_value_is_kept_and_logged_once(
    kubernetes: Kubernetes, follow: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpuslice")
    kubernetes.label("n1", config="a")

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        await eventually(lambda: kubernetes.watching == 1)
        kubernetes.stop()
        await asyncio.sleep(1.5)
        assert follower.values == ["a"]
        kubernetes.label("n1", config="b")
        kubernetes.start()
        await follower.until("a", "b")

    follow(scenario)
    assert logged(caplog) == [Code.API_SERVER_UNAVAILABLE, Code.API_SERVER_AVAILABLE]


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_a_rejected_request_is_retried(kubernetes: Kubernetes, follow: Scenario, code: int) -> None:
    kubernetes.label("n1", config="a")
    kubernetes.refuse_with = code

    async def scenario(follower: Follower) -> None:
        await eventually(lambda: len(kubernetes.requests) >= 2)
        assert follower.values == []
        kubernetes.refuse_with = None
        await follower.until("a")

    follow(scenario)


def test_a_server_that_ends_every_watch_at_once_is_not_stormed(
    kubernetes: Kubernetes, follow: Scenario
) -> None:
    kubernetes.label("n1", config="a")
    kubernetes.end_watches_at_once = True

    async def scenario(follower: Follower) -> None:
        await follower.until("a")
        began = time.monotonic()
        await asyncio.sleep(2)
        # A burst of ten, then five a second.
        assert len(kubernetes.requests) <= 15 + 5 * (time.monotonic() - began)

    follow(scenario)
