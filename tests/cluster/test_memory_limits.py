"""Memory limits of the driver, in the cgroups of a real kubelet and containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .harness import MPS_PIPE, Cluster, Object, eventually
from .harness.node import Node
from .pods import container, pod, slice_pod

NODE, UNITS = "node-b", 4 * 44
AGENT = (
    "agent",
    "--mps-pipe",
    MPS_PIPE,
    "--memory-advertise=all",
    "--memory-limits=driver",
    "--memory-reserve=0",
)
GIB = 1 << 30
# Two processes at once: one holds 1 GiB, the other takes what it gets.
TWO = "simcuda hold --alloc 1GiB > /tmp/one & sleep 2; simcuda fill; kill $!"
WITHOUT_LIMIT = "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; simcuda fill"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """As if it had driver 615, and its kernel the dmem controller."""
    node = cluster.node(NODE)
    unified = Path("/sys/fs/cgroup/unified")
    root = (unified if unified.is_dir() else unified.parent) / node.cgroup
    branch = node.sim.state.values()["driver.branch"]
    listed = node.directory / "controllers"
    listed.write_text("cpu memory dmem\n")
    controllers = str(root / "cgroup.controllers")
    node.run(["mount", "--bind", str(listed), controllers])
    node.sim.set({"driver.branch": 615})
    node.restart_agent(*AGENT, f"--cgroup-root={root}")
    cluster.wait_for_amount(NODE, UNITS)
    yield node
    cluster.delete_pods()
    node.agent.stop()
    node.run(["umount", controllers])
    node.sim.set({"driver.branch": branch})
    node.restart_agent()
    cluster.wait_for_amount(NODE, UNITS)


def limits(node: Node, made: Object) -> dict[str, int]:
    """Hard limits of the pod and below it, by the part of the path after the pod."""
    uid = made["metadata"]["uid"]
    return {
        key.partition(f"/pod{uid}")[2]: int(value.split()[1])
        for key, value in node.sim.state.values().items()
        if ".limits./" in key and f"/pod{uid}" in key
    }


def shell(cluster: Cluster, name: str, text: str, where: str = "main") -> Object:
    output = cluster.kubectl("exec", name, "-c", where, "--", "sh", "-c", f"{text}; true")
    report: Object = json.loads(output.splitlines()[-1])
    return report


def test_all_processes_of_a_container_together_are_held_to_its_share(
    cluster: Cluster, node: Node
) -> None:
    made = cluster.create(slice_pod("held", 3, NODE))
    cluster.wait_for_pod("held")
    found = shell(cluster, "held", TWO)
    assert found["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    # Its own program has a context, too.
    assert found["total_bytes"] < 2 * GIB
    changed = shell(cluster, "held", WITHOUT_LIMIT)
    assert changed["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert changed["total_bytes"] <= 3 * GIB
    # The pod before it started, and then its containers: the pause container has one, too.
    found_limits = eventually(
        lambda: found if len(found := limits(node, made)) == 3 else None, "limits of containers"
    )
    assert set(found_limits.values()) == {3 * GIB}
    assert "" in found_limits


def test_containers_of_a_pod_share_its_limit(cluster: Cluster, node: Node) -> None:
    made = cluster.create(pod("both", container(2, "one"), container(1, "two"), node=NODE))
    cluster.wait_for_pod("both")
    assert limits(node, made)[""] == 3 * GIB


def test_a_container_waits_while_the_driver_does_not_limit_it(cluster: Cluster, node: Node) -> None:
    gpus = [gpu.index for gpu in node.sim.gpus()]
    for gpu in gpus:
        node.sim.faults.ignore_memory_limits(gpu)
    try:
        cluster.create(slice_pod("waits", 2, NODE))
        eventually(
            lambda: any(Code.MEMORY_NOT_LIMITED in text for text in cluster.events("waits")),
            "an event of the pod",
            explain=lambda: "\n".join(cluster.events("waits")),
        )
        assert cluster.pod("waits")["status"]["phase"] == "Pending"
    finally:
        for gpu in gpus:
            node.sim.faults.ignore_memory_limits(gpu, ignored=False)
    cluster.wait_for_pod("waits")
