"""Threads by annotations of pods, on a real kubelet, containerd and API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .bound import (
    NODE,
    account,
    bound_agent,
    check_limits,
    end_container,
    greedy,
    wait_for_second_start,
)
from .harness import Cluster, Node, Object
from .pods import container, event, pod, restart_container, seen, slice_pod


@pytest.fixture(scope="module")
def kubeconfig(shared_cluster: Cluster) -> Path:
    return account(shared_cluster)


@pytest.fixture
def node(cluster: Cluster, kubeconfig: Path) -> Iterator[Node]:
    flags = (
        "--bind=cdi",
        "--thread-annotations=any",
        f"--node-name={NODE}",
        f"--kubeconfig={kubeconfig}",
    )
    with bound_agent(cluster, *flags) as node:
        yield node


def annotated(made: Object, **annotations: str) -> Object:
    """`threads="30%"`, or `threads_side="30%"` for a container."""
    named = {f"gpuslice.io/{k.replace('_', '.')}": v for k, v in annotations.items()}
    return made | {"metadata": made["metadata"] | {"annotations": named}}


def annotate(cluster: Cluster, name: str, text: str) -> None:
    annotations = {"gpuslice.io/threads": text}
    path = f"/api/v1/namespaces/default/pods/{name}"
    cluster.kube.patch(path, {"metadata": {"annotations": annotations}})


def test_equal_pods_at_once_have_the_threads_of_their_own_annotations(
    cluster: Cluster, node: Node
) -> None:
    percents = {f"pod-{percent:02}": percent for percent in range(4, 84, 4)}
    for name, percent in percents.items():
        made = annotated(slice_pod(name, 2, NODE), threads=f"{percent}%")
        cluster.create(greedy(made, node))
    for name, percent in percents.items():
        cluster.wait_for_pod(name)
        check_limits(cluster, node, name, 2, percent=percent)


def test_containers_have_sms_by_annotation_and_a_change_applies_at_the_next_start(
    cluster: Cluster, node: Node
) -> None:
    made = pod("pair", container(2, "one"), container(2, "two"), node=NODE)
    cluster.create(annotated(made, threads="30 SMs", threads_two="11 SMs"))
    cluster.create(annotated(slice_pod("alone", 2, NODE), threads="20 SMs"))
    cluster.wait_for_pod("pair")
    assert seen(cluster, "pair", "one").device["sms"] == 30
    assert seen(cluster, "pair", "two").device["sms"] == 10  # whole TPCs
    cluster.wait_for_pod("alone")
    assert seen(cluster, "alone").device["sms"] == 20
    annotate(cluster, "alone", "8 SMs")
    restart_container(cluster, "alone")
    assert seen(cluster, "alone").device["sms"] == 8


def test_a_pod_with_an_invalid_annotation_waits_with_an_event_until_it_is_corrected(
    cluster: Cluster, node: Node
) -> None:
    cluster.create(annotated(slice_pod("wrong", 2, NODE), threads="much"))
    told = event(cluster, "wrong", "Failed")
    assert f"{Code.ANNOTATION_INVALID}: " in told
    assert "annotation gpuslice.io/threads: 'much' is not valid: use a percentage" in told
    annotate(cluster, "wrong", "50%")
    cluster.wait_for_pod("wrong")
    check_limits(cluster, node, "wrong", 2, percent=50)


@pytest.mark.parametrize("agent", ["runs", "restarts"])
def test_a_container_restarts_with_its_threads_while_the_api_server_is_down(
    cluster: Cluster, node: Node, agent: str
) -> None:
    cluster.create(greedy(annotated(slice_pod("one", 2, NODE), threads="30%"), node))
    made = cluster.wait_for_pod("one")
    check_limits(cluster, node, "one", 2, percent=30)
    plane = cluster.control_plane
    plane.apiserver.kill()
    try:
        if agent == "restarts":
            node.agent.kill()
            node.agent.start()
        end_container(node, made)
        wait_for_second_start(node, made)
    finally:
        plane.apiserver.start()
        plane.wait_for_api()
    cluster.wait_for_node(NODE)
    check_limits(cluster, node, "one", 2, percent=30)
