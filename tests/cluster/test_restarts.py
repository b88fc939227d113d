"""Restarts and crashes under running pods: pods go on, new ones start, nothing is double-booked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from gpuslice.codes import Code

from .harness import Cluster, Node, Object, eventually
from .pods import (
    check_nothing_is_double_booked,
    check_slice,
    container,
    container_status,
    pod,
    restart_container,
    seen,
    slice_pod,
)

NODE = "node-a"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """node-a with two pods that fill half of each GPU; whatever happens, it is whole afterwards."""
    node = cluster.node(NODE)
    for name in ("one", "two"):
        cluster.create(slice_pod(name, 8))
    for name in ("one", "two"):
        cluster.wait_for_pod(name)
        check_slice(cluster, NODE, name, 8)
    yield node
    for process in node.processes:
        process.start()
    cluster.wait_for_node(NODE)
    cluster.wait_for_amount(NODE, 30)


def container_ids(cluster: Cluster) -> dict[str, str]:
    return {name: container_status(cluster.pod(name))["containerID"] for name in ("one", "two")}


def check_new_pods_start(cluster: Cluster) -> None:
    """As many as the free units allow, beside those that run."""
    cluster.wait_for_amount(NODE, 30)
    for name in ("three", "four"):
        cluster.create(slice_pod(name, 7))
    for name in ("three", "four"):
        cluster.wait_for_pod(name)
        check_slice(cluster, NODE, name, 7)
    check_nothing_is_double_booked(cluster, NODE)


@contextlib.contextmanager
def registration(node: Node) -> Iterator[None]:
    """What is done in the block makes the agent register anew; until then, the node's status is of
    the past, and pods that the scheduler sends meanwhile are refused by the kubelet."""

    def count() -> int:
        return node.agent.log.read_text().count(f"{Code.REGISTERED}: ")

    before = count()
    yield
    eventually(lambda: count() > before, "the agent has registered", explain=node.agent.tail)


def agent_restart(node: Node) -> None:
    node.agent.restart()


def agent_crash(node: Node) -> None:
    node.agent.kill()
    node.agent.start()


def kubelet_restart(node: Node) -> None:
    node.kubelet.restart()


def kubelet_crash(node: Node) -> None:
    node.kubelet.kill()
    node.kubelet.start()


@pytest.mark.parametrize("mishap", [agent_restart, agent_crash, kubelet_restart, kubelet_crash])
def test_pods_go_on_and_new_ones_start_after(
    cluster: Cluster, node: Node, mishap: Callable[[Node], None]
) -> None:
    before = container_ids(cluster)
    with registration(node):
        mishap(node)
    cluster.wait_for_node(NODE)
    check_new_pods_start(cluster)
    assert container_ids(cluster) == before
    for name in before:
        assert container_status(cluster.pod(name))["restartCount"] == 0


def test_a_container_restarts_with_its_slice_while_the_kubelet_knows_a_new_agent(
    cluster: Cluster, node: Node
) -> None:
    before = seen(cluster, "one")
    with registration(node):
        agent_crash(node)
    cluster.wait_for_amount(NODE, 30)
    restart_container(cluster, "one")
    assert check_slice(cluster, NODE, "one", 8).gpu_nodes == before.gpu_nodes


def test_without_agent_nothing_is_offered_and_pods_go_on(cluster: Cluster, node: Node) -> None:
    before = container_ids(cluster)
    node.agent.stop()
    cluster.wait_for_amount(NODE, 0)
    cluster.create(slice_pod("late", 3))
    eventually(
        lambda: any("FailedScheduling" in event for event in cluster.events("late")),
        "the scheduler finds no room",
    )
    assert container_ids(cluster) == before
    node.agent.start()
    cluster.wait_for_pod("late")
    check_slice(cluster, NODE, "late", 3)


def test_an_agent_that_is_absent_while_the_kubelet_restarts_is_found_later(
    cluster: Cluster, node: Node
) -> None:
    before = container_ids(cluster)
    node.agent.stop()
    node.kubelet.restart()
    cluster.wait_for_node(NODE)
    cluster.wait_for_amount(NODE, 0)
    with registration(node):
        node.agent.start()
    check_new_pods_start(cluster)
    assert container_ids(cluster) == before


def test_after_a_reboot_new_pods_start(cluster: Cluster, node: Node) -> None:
    """The kubelet may fail pods that it admits before the agent is there, so they are new ones."""
    with registration(node):
        node.reboot()
    cluster.wait_for_node(NODE)
    cluster.delete_pods("one", "two")
    cluster.wait_for_amount(NODE, 30)
    check_new_pods_start(cluster)


def test_a_deployment_is_whole_again_after_a_reboot(cluster: Cluster, node: Node) -> None:
    with deployment(cluster) as before:
        with registration(node):
            node.reboot()
        check_replicas(cluster, instead_of=before)


def test_a_deployment_is_whole_again_though_the_agent_came_late(
    cluster: Cluster, node: Node
) -> None:
    """Pods that the kubelet admits again before the agent is there fail, and are replaced."""
    with deployment(cluster) as before:
        node.power_off()
        node.boot_without_agent()
        eventually(
            lambda: any(
                p["status"].get("reason") == "UnexpectedAdmissionError" for p in web(cluster)
            ),
            "the kubelet has refused a pod",
        )
        with registration(node):
            node.agent.start()
        check_replicas(cluster, instead_of=before)


@contextlib.contextmanager
def deployment(cluster: Cluster) -> Iterator[set[str]]:
    """Four replicas of 5 GiB on the node, in place of the pods there; gives their containers."""
    cluster.delete_pods("one", "two")
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": pod("web", container(5), node=NODE)["spec"],
    }
    spec = {"replicas": 4, "selector": {"matchLabels": labels}, "template": template}
    cluster.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": spec,
        }
    )
    try:
        yield check_replicas(cluster, instead_of=set())
    finally:
        cluster.kubectl("delete", "deployment", "web", "--cascade=foreground")


def web(cluster: Cluster) -> list[Object]:
    return cluster.pods(labelSelector="app=web")


def check_replicas(cluster: Cluster, instead_of: set[str]) -> set[str]:
    """Four are ready, none in a container of before, which is how they look until the kubelet
    reports; returns their containers."""
    cluster.wait_for_node(NODE)
    cluster.wait_for_amount(NODE, 30)

    def all_ready() -> dict[str, str] | None:
        ready = {
            p["metadata"]["name"]: container_status(p)["containerID"]
            for p in web(cluster)
            if _is_ready(p)
        }
        return ready if len(ready) == 4 and not instead_of & set(ready.values()) else None

    replicas = eventually(all_ready, "four new replicas are ready")
    for name in replicas:
        check_slice(cluster, NODE, name, 5)
    check_nothing_is_double_booked(cluster, NODE)
    return set(replicas.values())


def _is_ready(pod: Object) -> bool:
    if pod["metadata"].get("deletionTimestamp") or pod["status"]["phase"] != "Running":
        return False
    # A kubelet that has just started knows no containers yet.
    return "containerStatuses" in pod["status"] and bool(container_status(pod)["ready"])
