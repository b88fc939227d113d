"""Replicas by time-slicing and by MPS, MIG, and all of it on one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuslice.codes import Code

from .harness import RESOURCE, Cluster
from .harness.daemonset import DaemonSetAgent
from .harness.node import Mps
from .pods import check_devices, container_status, device_pod, event

NODE, CUT_NODE = "node-w", "node-m"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
MIB = 1 << 20


def sharing(strategy: str, replicas: int, **options: bool | str) -> str:
    extra = "".join(f"    {name}: {str(value).lower()}\n" for name, value in options.items())
    entry = f"      - {{name: {GPU}, replicas: {replicas}}}\n"
    return f"version: v1\nsharing:\n  {strategy}:\n{extra}    resources:\n{entry}"


def test_replicas_by_time_slicing_see_the_gpu_they_belong_to(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    whole.start({GPU: 12}, config=sharing("timeSlicing", 3))
    sizes = {"one": 1, "other": 1, "three": 3, "most": 7}
    for name, count in sizes.items():
        nvidia.create(device_pod(name, NODE, {GPU: count}))
        nvidia.wait_for_pod(name)
        check_devices(nvidia, NODE, name)
    owned = [ids for owners in nvidia.pod_resources(NODE).values() for ids in owners.get(GPU, [])]
    assert len(set(owned)) == 12


def test_a_request_for_two_renamed_replicas_is_refused_in_words(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    options = {"renameByDefault": True, "failRequestsGreaterThanOne": True}
    whole.start({SHARED: 12}, config=sharing("timeSlicing", 3, **options))
    assert nvidia.amount(NODE, resource=GPU) == 0
    nvidia.create(device_pod("one", NODE, {SHARED: 1}))
    nvidia.create(device_pod("two", NODE, {SHARED: 2}))
    nvidia.wait_for_pod("one")
    check_devices(nvidia, NODE, "one")
    refused = nvidia.wait_for_pod("two", "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    told = event(nvidia, "two", "UnexpectedAdmissionError")
    assert f'{Code.REQUEST_TOO_LARGE}: invalid allocation request for "{SHARED}"' in told
    assert "maximum request size for shared resources is 1; found 2" in told


@pytest.fixture
def mps(whole: DaemonSetAgent) -> Iterator[Mps]:
    """The daemon of the shared resource, where NVIDIA's has its pipe. Not started yet."""
    node = whole.node
    pipe = f"/run/nvidia/mps/{SHARED}/pipe"
    node.run(["mkdir", "-p", pipe, f"/run/nvidia/mps/{SHARED}/shm"])
    daemon = node.mps_daemon("mps-shared", pipe)
    yield daemon
    daemon.stop()


def test_replicas_by_mps_wait_for_the_daemon_and_are_held_to_their_limits(
    nvidia: Cluster, whole: DaemonSetAgent, mps: Mps
) -> None:
    options = {"renameByDefault": True, "failRequestsGreaterThanOne": False}
    whole.start({SHARED: 0}, config=sharing("mps", 4, advertise="all", **options))
    mps.start()
    whole.wait_for({SHARED: 16})
    for name, replicas in (("one", 1), ("three", 3)):
        nvidia.create(device_pod(name, NODE, {SHARED: replicas}, mps=True))
    for name, replicas in (("one", 1), ("three", 3)):
        nvidia.wait_for_pod(name)
        found = check_devices(nvidia, NODE, name)
        gpu = whole.node.sim.gpu(found.device["uuid"])
        assert found.gpu_nodes == (f"nvidia{gpu.minor}",)
        assert found.report["mps"] is True
        limit = gpu.memory_total_bytes // MIB // 4 * MIB * replicas
        assert found.device["limit_bytes"] == limit
        assert 0 <= gpu.sms * replicas // 4 - found.device["sms"] < 2  # whole pairs of them
        command = f"simcuda alloc {limit // MIB + 1}MiB || true"
        said = nvidia.kubectl("exec", name, "--", "sh", "-c", command)
        assert "CUDA_ERROR_OUT_OF_MEMORY" in said
    mps.stop()
    whole.wait_for({SHARED: 0})


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_mig_devices_that_are_all_alike_are_offered_as_gpus(
    nvidia: Cluster, cut: DaemonSetAgent, strategy: str
) -> None:
    cut.start({GPU: 14}, MIG_STRATEGY="single", DEVICE_LIST_STRATEGY=strategy)
    for name in ("one", "other"):
        nvidia.create(device_pod(name, CUT_NODE, {GPU: 1}))
    for name in ("one", "other"):
        nvidia.wait_for_pod(name)
        found = check_devices(nvidia, CUT_NODE, name)
        assert len(found.gpu_nodes) == 1
        assert len(found.cap_nodes) == 2


EVERYTHING = f"""\
version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    resources:
      - {{name: {GPU}, rename: {SHARED}, devices: [0], replicas: 3}}
  memory:
    devices: [2]
"""
ALL_KINDS = {"whole": GPU, "replica": SHARED, "memory": RESOURCE}
BIG, SMALL, MIDDLE = (f"nvidia.com/mig-{profile}" for profile in ("3g.20gb", "1g.5gb", "2g.10gb"))


@pytest.fixture
def a_cut_gpu(whole: DaemonSetAgent) -> Iterator[None]:
    whole.node.set_mig(1, ["3g.20gb", "1g.5gb", "1g.5gb"])
    yield
    whole.node.set_mig(1, [])


@pytest.mark.usefixtures("a_cut_gpu")
def test_one_node_offers_everything_at_once_and_follows_a_new_mig_layout(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    offers = {GPU: 1, SHARED: 3, RESOURCE: 15, BIG: 1, SMALL: 2}
    whole.start(offers, config=EVERYTHING)
    pods = ALL_KINDS | {"big": BIG, "small": SMALL}
    for name, resource in pods.items():
        nvidia.create(device_pod(name, NODE, {resource: 1}))
    nodes = {}
    for name in pods:
        nvidia.wait_for_pod(name, ready=True)
        nodes[name] = check_devices(nvidia, NODE, name).gpu_nodes
    gpus = whole.node.sim.gpus()
    assert nodes["whole"] == (f"nvidia{gpus[3].minor}",)
    assert nodes["replica"] == (f"nvidia{gpus[0].minor}",)
    assert nodes["memory"] == (f"nvidia{gpus[2].minor}",)
    assert nodes["big"] == nodes["small"] == (f"nvidia{gpus[1].minor}",)

    nvidia.delete_pods("big", "small")
    agent = whole.node.agent.pid
    before = {name: container_status(nvidia.pod(name)) for name in ALL_KINDS}
    whole.node.set_mig(1, ["2g.10gb", "2g.10gb", "2g.10gb"])
    whole.wait_for({BIG: 0, SMALL: 0, MIDDLE: 3, GPU: 1, SHARED: 3, RESOURCE: 15})
    assert whole.node.agent.pid == agent
    nvidia.create(device_pod("middle", NODE, {MIDDLE: 1}))
    nvidia.wait_for_pod("middle")
    assert len(check_devices(nvidia, NODE, "middle").cap_nodes) == 2
    assert before == {name: container_status(nvidia.pod(name)) for name in ALL_KINDS}


def test_a_container_may_have_several_kinds_at_once(nvidia: Cluster, whole: DaemonSetAgent) -> None:
    config = EVERYTHING.replace("mixed", "none")
    whole.start({GPU: 2, SHARED: 3, RESOURCE: 15}, config=config, DEVICE_LIST_STRATEGY="cdi-cri")
    nvidia.create(device_pod("both", NODE, {GPU: 1, SHARED: 1}))
    nvidia.wait_for_pod("both")
    assert len(check_devices(nvidia, NODE, "both").gpu_nodes) == 2
