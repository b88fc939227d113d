"""Limits as CDI specifications, on a real kubelet, containerd and NVIDIA's runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .bound import NODE, UNITS, bound_agent, check_limits, greedy, specifications
from .harness import Cluster, eventually
from .harness.node import Node
from .pods import (
    check_slice,
    container,
    container_status,
    event,
    pod,
    restart_container,
    seen,
    short_container,
    slice_pod,
)


@pytest.fixture(params=["cdi", "auto"])
def bind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(cluster: Cluster, bind: str) -> Iterator[Node]:
    with bound_agent(cluster, f"--bind={bind}") as node:
        yield node


def test_a_pod_cannot_override_its_limits(cluster: Cluster, node: Node) -> None:
    cluster.create(greedy(slice_pod("greedy", 1, NODE), node))
    cluster.wait_for_pod("greedy")
    check_slice(cluster, NODE, "greedy", 1)
    text = cluster.kubectl("exec", "greedy", "--", "sh", "-c", "simcuda alloc 2GiB || true")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in text


@pytest.mark.parametrize("bind", ["env"])
def test_by_environment_a_pod_overrides_its_limits(cluster: Cluster, node: Node) -> None:
    """Why there is late binding."""
    made = slice_pod("greedy", 1, NODE)
    variable = {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}
    made["spec"]["containers"][0]["env"] = [variable]
    cluster.create(made)
    cluster.wait_for_pod("greedy")
    assert seen(cluster, "greedy").device["sms"] == node.sim.gpus()[0].sms


def test_twenty_pods_with_distinct_shares_at_once_get_exactly_their_own(cluster: Cluster) -> None:
    """Of 88 units of 512 MiB on each of four GPUs. However they come, each finds room on one."""
    sizes = {f"pod-{units:02}": units for units in range(1, 21)}
    with bound_agent(cluster, "--bind=cdi", "--memory-unit=512MiB") as node:
        for name, units in sizes.items():
            cluster.create(greedy(slice_pod(name, units, NODE), node))
        for name, units in sizes.items():
            cluster.wait_for_pod(name)
            check_limits(cluster, node, name, units, per_gib=2)
        assert len(list(specifications(node).iterdir())) == 20
        cluster.delete_pods()
        eventually(lambda: not list(specifications(node).iterdir()), "no specification is left")


@pytest.mark.parametrize("bind", ["cdi"])
def test_containers_of_a_pod_know_the_total_of_the_pod(cluster: Cluster, node: Node) -> None:
    del node
    first, one, two = short_container(6, "first"), container(4, "one"), container(2, "two")
    cluster.create(pod("steps", one, two, init=[first], node=NODE))
    cluster.wait_for_pod("steps")
    for name, units in (("one", 4), ("two", 2)):
        found = check_slice(cluster, NODE, "steps", units, name)
        assert found.variables["ALIYUN_COM_GPU_MEM_POD"] == "6"
    assert seen(cluster, "steps", "first").device["limit_bytes"] == 6 << 30


def test_a_container_restarts_with_its_limits_after_the_specifications_are_lost(
    cluster: Cluster, node: Node
) -> None:
    cluster.create(greedy(slice_pod("one", 3, NODE), node))
    cluster.wait_for_pod("one")
    before = check_slice(cluster, NODE, "one", 3)
    node.agent.kill()
    for path in specifications(node).iterdir():
        path.unlink()
    node.agent.start()
    cluster.wait_for_amount(NODE, UNITS)
    restart_container(cluster, "one")
    assert check_slice(cluster, NODE, "one", 3).gpu_nodes == before.gpu_nodes


@pytest.mark.parametrize("bind", ["cdi"])
def test_a_container_waits_with_our_sentence_while_its_limits_cannot_be_written(
    cluster: Cluster, node: Node
) -> None:
    aside = specifications(node).with_name("aside")
    specifications(node).rename(aside)
    cluster.create(slice_pod("waits", 3, NODE))
    sentence = event(cluster, "waits", "Failed")
    aside.rename(specifications(node))
    assert "CDISpecNotWritten: " in sentence
    assert "the container waits because its limits cannot be set" in sentence
    cluster.wait_for_pod("waits")
    check_slice(cluster, NODE, "waits", 3)


@pytest.mark.parametrize("bind", ["cdi"])
def test_limits_are_right_after_the_agent_was_killed_between_allocate_and_start(
    cluster: Cluster, node: Node
) -> None:
    wait = ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done"]
    first = container(0, "first", command=wait)
    cluster.create(greedy(pod("late", container(3), init=[first], node=NODE), node))
    eventually(
        lambda: ("late", "main") in cluster.pod_resources(NODE), "the kubelet has allocated devices"
    )
    node.agent.kill()
    assert not list(specifications(node).glob("gpuslice.io-c*"))

    def waits() -> bool:
        statuses = cluster.pod("late")["status"].get("initContainerStatuses", [])
        return any("running" in status["state"] for status in statuses)

    eventually(waits, "the init container runs")
    cluster.kubectl("exec", "late", "-c", "first", "--", "touch", "/tmp/go")
    event(cluster, "late", "Failed")
    node.agent.start()
    cluster.wait_for_pod("late")
    check_slice(cluster, NODE, "late", 3)
    check_limits(cluster, node, "late", 3)


def test_limits_are_right_after_a_restart_of_the_container_runtime(
    cluster: Cluster, node: Node
) -> None:
    cluster.create(greedy(slice_pod("one", 3, NODE), node))
    cluster.wait_for_pod("one")
    check_limits(cluster, node, "one", 3)
    node.containerd.restart()
    cluster.wait_for_node(NODE)
    cluster.create(greedy(slice_pod("two", 5, NODE), node))
    cluster.wait_for_pod("two")
    check_limits(cluster, node, "two", 5)
    restart_container(cluster, "one")
    check_limits(cluster, node, "one", 3)


def test_limits_are_right_after_a_reboot(cluster: Cluster, node: Node) -> None:
    """The kubelet may fail pods that it admits before the agent is there."""
    sizes = {"one": 3, "two": 5}
    for name, units in sizes.items():
        cluster.create(greedy(slice_pod(name, units, NODE), node))
    before = {}
    for name, units in sizes.items():
        cluster.wait_for_pod(name)
        check_limits(cluster, node, name, units)
        before[name] = container_status(cluster.pod(name))["containerID"]
    node.power_off()
    node.boot_without_agent()
    # As the kubelet makes it for the pod of the agent, when the container runtime already runs.
    specifications(node).mkdir()
    node.start_agent()
    cluster.wait_for_node(NODE)
    cluster.wait_for_amount(NODE, UNITS)

    def settled(name: str) -> str | None:
        found = cluster.pod(name)
        again = "containerStatuses" in found["status"] and container_status(found)
        if found["status"]["phase"] == "Failed":
            return "failed"
        is_new = again and "running" in again["state"] and again["containerID"] != before[name]
        return "runs" if is_new else None

    for name, units in sizes.items():
        if eventually(lambda name=name: settled(name), f"{name} runs again, or failed") == "runs":  # type: ignore[misc]
            check_limits(cluster, node, name, units)
    cluster.create(greedy(slice_pod("new", 7, NODE), node))
    cluster.wait_for_pod("new")
    check_limits(cluster, node, "new", 7)
