"""The annotations of the pods of one node: by a watch, and by reading single pods."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import ParamSpec

import pytest

from gpuslice.cluster.client import connect
from gpuslice.cluster.errors import ClusterError
from gpuslice.cluster.pod_annotations import PodAnnotations
from gpuslice.codes import Code
from gpuslice.slicing.thread_annotations import thread_annotations
from tests.unit.logged import logged

from .kubernetes import Kubernetes
from .test_node import eventually

KEY = "gpuslice.io/threads"
UNKNOWN = {"error": "the API server does not have it"}
P = ParamSpec("P")
SINGLE = r"GET /api/v1/namespaces/"


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def put(kubernetes: Kubernetes, name: str, uid: str, **annotations: str) -> None:
    kubernetes.put(
        "pods",
        name,
        metadata={
            "namespace": "default",
            "uid": uid,
            "annotations": {f"gpuslice.io/{k.replace('_', '.')}": v for k, v in annotations.items()}
            | {"other": "x" * 1000},
        },
        spec={"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]},
    )


@contextlib.asynccontextmanager
async def watched(
    kubernetes: Kubernetes, directory: Path, *, watching: bool = True
) -> AsyncIterator[PodAnnotations]:
    api = connect(kubernetes.kubeconfig(directory / "kubeconfig"))
    pods = PodAnnotations(api, "n1", thread_annotations)
    task = asyncio.create_task(pods.watch()) if watching else None
    await asyncio.sleep(0)  # the watch begins
    try:
        yield pods
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await api.close()


async def until(pods: PodAnnotations, uid: str, holds: Callable[[dict[str, str]], bool]) -> None:
    for _ in range(4000):
        try:
            found = dict(await pods.read("default", "p", uid))
        except ClusterError:
            found = UNKNOWN
        if holds(found):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the change did not arrive")


@in_loop
async def test_pods_of_the_node_are_known_without_a_request_for_each(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    for number in range(100):
        put(kubernetes, f"p{number}", f"u{number}", threads=f"{number}%", threads_gone="1%")
    async with watched(kubernetes, tmp_path) as pods:
        reads = (pods.read("default", f"p{number}", f"u{number}") for number in range(100))
        found = await asyncio.gather(*reads)
        # The list is known before the watch begins.
        await eventually(lambda: bool(kubernetes.watches))
    assert found == [{KEY: f"{number}%"} for number in range(100)]
    assert kubernetes.count(SINGLE) == 0
    [watch] = kubernetes.watches
    assert "spec.nodeName=n1" in watch["fieldSelector"]
    assert "status.phase!=Succeeded" in watch["fieldSelector"]


@in_loop
async def test_a_change_replaces_what_is_known(kubernetes: Kubernetes, tmp_path: Path) -> None:
    put(kubernetes, "p", "u", threads="1%")
    async with watched(kubernetes, tmp_path) as pods:
        assert await pods.read("default", "p", "u") == {KEY: "1%"}
        put(kubernetes, "p", "u", threads="2%")
        await until(pods, "u", lambda found: found == {KEY: "2%"})
        put(kubernetes, "p", "u", threads_main="3%", threads_first="4%")
        await until(pods, "u", lambda found: len(found) == 2)
    assert kubernetes.count(SINGLE) == 0


@in_loop
async def test_a_pod_of_the_same_name_is_another_pod(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    put(kubernetes, "p", "old", threads="1%")
    async with watched(kubernetes, tmp_path) as pods:
        assert await pods.read("default", "p", "old") == {KEY: "1%"}
        with pytest.raises(ClusterError, match="another pod of this name"):
            await pods.read("default", "p", "new")
        put(kubernetes, "p", "new", threads="2%")
        assert await pods.read("default", "p", "new") == {KEY: "2%"}


@in_loop
async def test_a_static_pod_has_the_uid_of_the_kubelet(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    metadata = {"namespace": "default", "uid": "mirror"}
    metadata["annotations"] = {KEY: "5%", "kubernetes.io/config.mirror": "u"}  # type: ignore[assignment]
    kubernetes.put("pods", "p", metadata=metadata)
    async with watched(kubernetes, tmp_path) as pods:
        assert await pods.read("default", "p", "u") == {KEY: "5%"}
    assert kubernetes.count(SINGLE) == 0


@in_loop
async def test_what_was_seen_is_kept_while_the_api_server_is_down_and_the_unknown_fails(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    put(kubernetes, "p", "u", threads="1%")
    async with watched(kubernetes, tmp_path) as pods:
        assert await pods.read("default", "p", "u") == {KEY: "1%"}
        kubernetes.stop()
        assert await pods.read("default", "p", "u") == {KEY: "1%"}
        for name, uid in (("q", "v"), ("p", None)):
            with pytest.raises(ClusterError, match=f"reading pod default/{name}"):
                await pods.read("default", name, uid)
        kubernetes.start()
        put(kubernetes, "p", "u", threads="2%")
        await until(pods, "u", lambda found: found == {KEY: "2%"})


@in_loop
async def test_without_the_right_to_watch_pods_are_read_one_by_one(
    kubernetes: Kubernetes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kubernetes.refuse_pattern = r"/api/v1/pods"
    put(kubernetes, "p", "u", threads="1%")
    async with watched(kubernetes, tmp_path) as pods:
        assert await pods.read("default", "p", "u") == {KEY: "1%"}
        await eventually(lambda: Code.API_SERVER_UNAVAILABLE in logged(caplog))
    assert kubernetes.count(SINGLE) == 1


@in_loop
async def test_without_a_watch_pods_are_read_one_by_one(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    put(kubernetes, "p", "u", threads="1%")
    async with watched(kubernetes, tmp_path, watching=False) as pods:
        assert await pods.read("default", "p", "u") == {KEY: "1%"}
    assert not kubernetes.watches


@in_loop
async def test_a_pod_that_is_gone_is_forgotten(kubernetes: Kubernetes, tmp_path: Path) -> None:
    put(kubernetes, "p", "u", threads="1%")
    async with watched(kubernetes, tmp_path) as pods:
        assert await pods.read("default", "p", "u") == {KEY: "1%"}
        kubernetes.delete("pods", "p")
        await until(pods, "u", lambda found: found == UNKNOWN)
