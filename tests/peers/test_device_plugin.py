"""NVIDIA's device plugin serves every simulated node as it would serve the real one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuslice_sim.node import SimGpu, SimMig

from . import device_nodes, facts
from .conftest import MakeNode, StartPlugin
from .plugins import Plugin

TIME_SLICING = """
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""


@pytest.mark.parametrize("profile", facts.CARDS)
def test_every_gpu_is_offered_by_its_uuid_and_numa_node(
    make_node: MakeNode, start_plugin: StartPlugin, profile: str
) -> None:
    node = make_node(profile)
    plugin = start_plugin(node)
    assert len(node.gpus()) == len(facts.CARDS[profile])
    assert plugin.devices() == {gpu.uuid: "Healthy" for gpu in node.gpus()}
    assert plugin.numa_nodes() == {gpu.uuid: [gpu.numa] for gpu in node.gpus()}


@pytest.mark.parametrize("profile", facts.CARDS)
def test_an_allocated_gpu_comes_by_its_uuid_with_its_device_nodes(
    make_node: MakeNode, start_plugin: StartPlugin, profile: str
) -> None:
    node = make_node(profile)
    plugin = start_plugin(node, "--pass-device-specs")
    for gpu in node.gpus():
        answer = plugin.allocate(gpu.uuid)
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": gpu.uuid}
        passed = {device.host_path for device in answer.devices}
        assert passed == {*device_nodes.CONTROL, *device_nodes.of_gpu(gpu)}


@pytest.mark.parametrize("profile", facts.CARDS)
def test_half_of_the_gpus_are_preferred_on_one_numa_node(
    make_node: MakeNode, start_plugin: StartPlugin, profile: str
) -> None:
    node = make_node(profile)
    gpus = {gpu.uuid: gpu for gpu in node.gpus()}
    half = len(gpus) // 2
    # Neighbours in this order are on different NUMA nodes, so the first ones are no good choice.
    offered = sorted(gpus, key=lambda uuid: (gpus[uuid].index % half, gpus[uuid].index))
    chosen = start_plugin(node).preferred(half, offered)
    assert len(set(chosen)) == half
    assert len({gpus[uuid].numa for uuid in chosen}) == 1


@pytest.mark.parametrize("profile", ["v100x4", "a100-40x8", "a100-80x8"])
def test_two_gpus_are_preferred_on_one_pcie_switch(
    make_node: MakeNode, start_plugin: StartPlugin, profile: str
) -> None:
    node = make_node(profile)
    plugin = start_plugin(node)
    uuids = [gpu.uuid for gpu in node.gpus()]
    switch = [node.state.values()[f"gpu.{i}.pcie.switch"] for i in range(len(uuids))]
    for required in range(len(uuids)):
        pair = plugin.preferred(2, uuids, must_include=(uuids[required],))
        first, second = (uuids.index(uuid) for uuid in pair)
        assert required in (first, second)
        assert switch[first] == switch[second]


def test_two_gpus_are_preferred_where_nvlinks_join_them(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("v100x4")
    partner = {0: 2, 1: 3, 2: 0, 3: 1}  # across the NUMA nodes, where nothing else draws them
    links = {k: v for k, v in node.state.values().items() if re.fullmatch(r"gpu.\d.nvlink.\d", k)}
    assert len(links) == 4 * 6
    cut = [k for k, v in links.items() if v != f"gpu:{node.gpu(partner[int(k[4])]).pci}"]
    node.set(dict.fromkeys(cut, "off"))
    uuids = [gpu.uuid for gpu in node.gpus()]
    plugin = start_plugin(node)
    for gpu, other in partner.items():
        pair = plugin.preferred(2, uuids, must_include=(uuids[gpu],))
        assert set(pair) == {uuids[gpu], uuids[other]}


@pytest.mark.parametrize("profile", facts.CARDS)
def test_a_fatal_xid_makes_just_its_gpu_unhealthy(
    make_node: MakeNode, start_plugin: StartPlugin, profile: str
) -> None:
    node = make_node(profile)
    plugin = start_plugin(node)
    healthy = plugin.devices()
    broken = node.gpus()[-1]
    plugin.settle(broken.index)
    node.faults.xid(broken.index, 79)
    plugin.settle(broken.index)
    plugin.wait_for_unhealthy(broken.uuid)
    assert plugin.devices() == healthy | {broken.uuid: "Unhealthy"}


def test_an_xid_of_an_application_leaves_the_gpu_healthy(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("t4x2")
    plugin = start_plugin(node)
    healthy = plugin.devices()
    plugin.settle(0)
    for xid in (13, 31, 43, 45, 68, 109):
        node.faults.xid(0, xid)
    plugin.settle(0)
    # Had one of them been taken for a fault, its message would have left before this one's.
    node.faults.xid(1, 79)
    plugin.wait_for_unhealthy(node.gpu(1).uuid)
    assert plugin.devices() == healthy | {node.gpu(1).uuid: "Unhealthy"}


def test_memory_errors_alone_leave_the_gpu_healthy(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("a100-40x8")
    plugin = start_plugin(node)
    plugin.settle(0)
    node.faults.ecc(0, corrected=3, uncorrected=1)
    plugin.process.wait_for_output("Skipping non-nvmlEventTypeXidCriticalError event", times=2)
    assert set(plugin.devices().values()) == {"Healthy"}


def test_a_failing_wait_for_events_makes_all_gpus_unhealthy(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("t4x2")
    plugin = start_plugin(node)
    plugin.settle(0)
    node.faults.event_wait("GPU_IS_LOST")
    plugin.wait_for_unhealthy(*(gpu.uuid for gpu in node.gpus()))
    plugin.process.wait_for_output("Error waiting for event: GPU is lost")
    node.faults.event_wait(None)


def test_a_driver_that_is_not_loaded_is_reported(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("t4x2")
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    plugin = start_plugin(node, "--fail-on-init-error=false")
    plugin.process.wait_for_output(r"(?i)nvml init failed: Driver Not Loaded")


@pytest.mark.parametrize("profile", ["t4x2", "a100-80x8"])
def test_time_slicing_offers_replicas_of_every_gpu(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path, profile: str
) -> None:
    config = scratch / "config.yaml"
    config.write_text(TIME_SLICING)
    node = make_node(profile)
    plugin = start_plugin(node, f"--config-file={config}")
    replicas = [f"{gpu.uuid}::{n}" for gpu in node.gpus() for n in range(4)]
    assert plugin.devices() == dict.fromkeys(replicas, "Healthy")
    spread = plugin.preferred(len(node.gpus()), replicas)
    assert {replica.partition("::")[0] for replica in spread} == {gpu.uuid for gpu in node.gpus()}
    answer = plugin.allocate(replicas[4], replicas[6])
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": node.gpu(1).uuid}


def test_the_single_strategy_offers_equal_mig_devices_as_gpus(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("a100x2-mig-single")
    plugin = start_plugin(node, "--mig-strategy=single", "--pass-device-specs")
    instances = [(gpu, mig) for gpu in node.gpus() for mig in gpu.mig]
    assert len(instances) == 14
    assert plugin.devices() == {mig.uuid: "Healthy" for _, mig in instances}
    assert plugin.numa_nodes() == {mig.uuid: [gpu.numa] for gpu, mig in instances}
    for gpu, mig in instances:
        assert_allocates(plugin, "nvidia.com/gpu", gpu, mig)


def test_the_single_strategy_refuses_different_mig_devices(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path
) -> None:
    node = make_node("a100-40x8")
    for gpu in node.gpus():
        node.faults.mig(gpu.index, ["3g.20gb", "2g.10gb"])
    plugin = start_plugin(node, "--mig-strategy=single", "--pass-device-specs")
    plugin.process.wait_for_output("more than one MIG device type present on node")
    assert plugin.process.wait() == 1


@pytest.mark.parametrize("profile", ["a100x2-mig-mixed", "a100x2-mig-single"])
def test_the_mixed_strategy_offers_a_resource_for_every_kind_of_mig_device(
    make_node: MakeNode, start_plugin: StartPlugin, profile: str
) -> None:
    node = make_node(profile)
    plugin = start_plugin(node, "--mig-strategy=mixed", "--pass-device-specs")
    kinds = {kind.name for gpu in facts.INSTANCES[profile] for kind in gpu}
    for kind in kinds:
        resource = f"nvidia.com/mig-{kind}"
        instances = [
            (gpu, mig) for gpu in node.gpus() for mig in gpu.mig if mig.profile.name == kind
        ]
        assert plugin.devices(resource) == {mig.uuid: "Healthy" for _, mig in instances}
        for gpu, mig in instances:
            assert_allocates(plugin, resource, gpu, mig)
    whole = [gpu.uuid for gpu in node.gpus() if not gpu.mig]
    if whole:
        assert plugin.devices() == dict.fromkeys(whole, "Healthy")
    else:
        assert plugin.kubelet.endpoint("nvidia.com/gpu") is None


def test_an_xid_of_a_mig_device_leaves_its_neighbours_healthy(
    make_node: MakeNode, start_plugin: StartPlugin
) -> None:
    node = make_node("a100x2-mig-mixed")
    plugin = start_plugin(node, "--mig-strategy=mixed")
    large, medium, *_ = node.gpu(0).mig
    plugin.devices("nvidia.com/mig-2g.10gb")
    plugin.settle(0, listeners=3)
    node.faults.xid(0, 79, gi=large.gi, ci=large.ci)
    plugin.settle(0, listeners=3)
    plugin.wait_for_unhealthy(large.uuid, resource="nvidia.com/mig-3g.20gb")
    assert plugin.devices("nvidia.com/mig-2g.10gb") == {medium.uuid: "Healthy"}
    assert plugin.devices() == {node.gpu(1).uuid: "Healthy"}


@pytest.mark.parametrize("profile", ["mixed", "a100x2-mig-single"])
def test_cdi_answers_name_devices_of_the_specification_it_writes(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path, profile: str
) -> None:
    node = make_node(profile)
    specs = scratch / "cdi"
    specs.mkdir()
    plugin = start_plugin(
        node,
        "--mig-strategy=single",
        "--device-list-strategy=cdi-cri",
        f"--driver-root={node.root}",
        binds={"/run/cdi": specs},
    )
    kind = "k8s.device-plugin.nvidia.com/gpu"
    for uuid in plugin.devices():
        assert [d.name for d in plugin.allocate(uuid).cdi_devices] == [f"{kind}={uuid}"]
    spec = json.loads((specs / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
    assert spec["kind"] == kind
    assert {device["name"] for device in spec["devices"]} == set(plugin.devices())


def assert_allocates(plugin: Plugin, resource: str, gpu: SimGpu, mig: SimMig) -> None:
    answer = plugin.allocate(mig.uuid, resource=resource)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": mig.uuid}
    expected = {*device_nodes.CONTROL, *device_nodes.of_mig(plugin.node, gpu, mig)}
    assert {device.host_path for device in answer.devices} == expected
