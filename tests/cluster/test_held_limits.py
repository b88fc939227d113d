"""Containers that try to get more than they were granted, on a real kubelet and containerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .bound import NODE, account, bound_agent, check_limits, greedy
from .harness import Cluster, Node, eventually
from .pods import container, container_status, event, pod, seen, slice_pod

CONTROL = "nvidia-cuda-mps-control"


@pytest.fixture(scope="module")
def kubeconfig(shared_cluster: Cluster) -> Path:
    return account(shared_cluster)


@pytest.fixture(params=["terminate", "evict"])
def node(cluster: Cluster, kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """The watchdog does this."""
    flags = (
        "--bind=cdi",
        f"--watchdog-mode={request.param}",
        "--watchdog-grace=0s",
        f"--node-name={NODE}",
        f"--kubeconfig={kubeconfig}",
    )
    with bound_agent(cluster, *flags) as node:
        yield node


def first_process(cluster: Cluster, node: Node) -> None:
    """A pod of 2 GiB with a process that holds most of it."""
    hold = ["sh", "-c", "simcuda hold --alloc 1500MiB; echo ended; sleep 1000"]
    cluster.create(greedy(pod("two", container(2, command=hold), node=NODE), node))
    cluster.wait_for_pod("two")
    found = seen(cluster, "two")
    assert found.report["error"] is None


@pytest.mark.parametrize("node", ["terminate"], indirect=True)
def test_the_second_process_of_a_container_ends_and_the_first_one_goes_on(
    cluster: Cluster, node: Node
) -> None:
    cluster.create(slice_pod("neighbour", 2, NODE))
    cluster.wait_for_pod("neighbour")
    first_process(cluster, node)
    second = "simcuda hold --alloc 1500MiB 2>&1 || true"
    text = cluster.kubectl("exec", "two", "--", "sh", "-c", second)
    assert "CUDA_ERROR_MPS_CLIENT_TERMINATED" in text
    assert "2 GiB that it was granted" in event(cluster, "two", Code.PROCESS_TERMINATED)
    assert "ended" not in cluster.logs("two")
    for name in ("two", "neighbour"):
        assert container_status(cluster.pod(name))["restartCount"] == 0
    # What each process may have alone was right all the time.
    text = cluster.kubectl("exec", "two", "--", "sh", "-c", "simcuda alloc 2049MiB || true")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in text


@pytest.mark.parametrize("node", ["evict"], indirect=True)
def test_a_pod_whose_container_has_a_second_process_is_evicted(
    cluster: Cluster, node: Node
) -> None:
    first_process(cluster, node)
    uid = cluster.pod("two")["metadata"]["uid"]
    second = "simcuda hold --alloc 1500MiB >/dev/null 2>&1 &"
    cluster.kubectl("exec", "two", "--", "sh", "-c", second)
    eventually(lambda: not cluster.pods(), "the pod is evicted", explain=node.agent.tail)
    events = eventually(
        lambda: [one for one in cluster.events_about(uid) if one.startswith(Code.POD_EVICTED)],
        "the pod has an event",
        explain=lambda: "\n".join(cluster.events_about(uid)),
    )
    assert "container main uses more memory" in events[0]


@pytest.mark.parametrize("node", ["terminate"], indirect=True)
def test_root_in_a_container_can_neither_change_nor_end_the_mps_of_the_node(
    cluster: Cluster, node: Node
) -> None:
    cluster.create(slice_pod("root", 1, NODE))
    cluster.wait_for_pod("root")
    check_limits(cluster, node, "root", 1)

    def command(text: str) -> str:
        script = f"id -u; echo {text} | {CONTROL} 2>&1; true"
        return cluster.kubectl("exec", "root", "--", "sh", "-c", script)

    assert command("get_server_list").splitlines()[0] == "0"
    assert len(command("get_server_list").splitlines()) > 1, "it reaches the daemon"
    before = node.mps.command("get_default_active_thread_percentage")
    for text, refusal in (
        ("set_default_active_thread_percentage 7", "Insufficient privileges"),
        ("quit", "Not enough privilege"),
        ("quit -f", "Not enough privilege"),
    ):
        assert refusal in command(text)
    assert node.mps.command("get_default_active_thread_percentage") == before
    node.mps.require()
    # The program that holds the GPU was not harmed.
    assert container_status(cluster.pod("root"))["restartCount"] == 0
    cluster.create(greedy(slice_pod("next", 2, NODE), node))
    cluster.wait_for_pod("next")
    check_limits(cluster, node, "next", 2)
