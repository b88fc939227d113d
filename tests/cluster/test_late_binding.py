"""Limits as CDI specifications, on a real kubelet, containerd and NVIDIA's runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import MPS_PIPE, Cluster, Object, eventually
from .harness.node import Node
from .pods import (
    check_slice,
    container,
    event,
    pod,
    restart_container,
    seen,
    short_container,
    slice_pod,
)

NODE, UNITS = "node-b", 4 * 44
AGENT = ("agent", "--mps-pipe", MPS_PIPE, "--memory-advertise=all", "--memory-reserve=0")


@pytest.fixture(params=["cdi", "auto"])
def bind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(cluster: Cluster, bind: str) -> Iterator[Node]:
    """Its agent writes to the directory of CDI specifications."""
    node = cluster.node(NODE)
    specifications(node).mkdir()
    node.restart_agent(*AGENT, f"--bind={bind}")
    cluster.wait_for_amount(NODE, UNITS)
    yield node
    cluster.delete_pods()
    node.agent.stop()
    shutil.rmtree(specifications(node))
    node.restart_agent()
    cluster.wait_for_amount(NODE, UNITS)


def specifications(node: Node) -> Path:
    """As the node has it at /var/run/cdi."""
    return node.directory / "run" / "cdi"


def greedy(made: Object, node: Node) -> Object:
    """The same pod, which asks for whole GPUs in its own variables."""
    uuids = [gpu.uuid for gpu in node.sim.gpus()]
    variables = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{uuid}=44G" for uuid in uuids),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/elsewhere",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    for one in made["spec"]["containers"]:
        one["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return made


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


@pytest.mark.parametrize("bind", ["cdi"])
def test_twenty_pods_at_once_get_exactly_their_own_limits(cluster: Cluster, node: Node) -> None:
    sizes = {f"pod-{number:02}": 1 + number % 8 for number in range(20)}
    for name, units in sizes.items():
        cluster.create(greedy(slice_pod(name, units, NODE), node))
    for name, units in sizes.items():
        cluster.wait_for_pod(name)
        check_slice(cluster, NODE, name, units)
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
