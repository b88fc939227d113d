"""Metrics and probes of an agent with several resources."""

from __future__ import annotations

import re

from gpuslice_sim.kubelet import Container, Pod
from tests.surroundings import free_address

from .conftest import MakeRig
from .rig import GPU, Rig, eventually
from .test_node_config import get

SHARED = "nvidia.com/gpu.shared"
TEXT = "sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 4, rename: %s}]}}"


def figure(address: str, metric: str, **labels: str) -> float | None:
    _, body = get(address, "/metrics")
    for line in body.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? ([-+.\de]+)", line)
        if match is None or match[1] != metric:
            continue
        found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
        if labels.items() <= found.items():
            return float(match[3])
    return None


def test_metrics_and_probes_follow_health_and_registration(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    address = free_address()
    with rig.plugin(f"--metrics-address={address}", rig.config(TEXT % "gpu.shared")):
        rig.wait_for_resources(GPU, SHARED)
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready")
        sick = rig.node.gpus()[0].uuid
        assert devices(address, SHARED) == (4, 0)
        assert devices(address, GPU) == (3, 0)
        rig.node.faults.xid(0, 79)
        eventually(lambda: devices(address, SHARED) == (0, 4), "four unhealthy replicas")
        assert devices(address, GPU) == (3, 0)
        assert figure(address, "gpuslice_gpu_healthy", uuid=sick) == 0
        allocate(rig)
        assert figure(address, "gpuslice_allocations_total", resource=GPU, result="ok") == 1
        rig.config(TEXT % "gpu.small")
        eventually(lambda: devices(address, "nvidia.com/gpu.small") == (0, 4), "the new name")
        eventually(lambda: devices(address, SHARED) == (None, None), "the old name to go")
        rig.config("sharing: [")
        eventually(lambda: get(address, "/readyz")[0] == 503, "not ready by the wrong file")
        assert get(address, "/healthz")[0] == 200
        rig.config(TEXT % "gpu.small")
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready again")
        rig.kubelet.stop()
        eventually(lambda: get(address, "/readyz")[0] == 503, "not ready without a kubelet")
        assert "not registered with the kubelet" in get(address, "/readyz")[1]
        rig.kubelet.start()
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready with the next kubelet")


def test_the_devices_in_use_follow_containers(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    address = free_address()
    pods = [Pod(name, [Container("main", {GPU: gpus})]) for name, gpus in (("a", 1), ("b", 2))]

    def in_use() -> float | None:
        return figure(address, "gpuslice_devices_in_use", resource=GPU)

    with rig.plugin(f"--metrics-address={address}"):
        rig.wait_for_resources(GPU)
        eventually(lambda: in_use() == 0, "no devices in use")
        for pod in pods:
            rig.kubelet.admit(pod)
        eventually(lambda: in_use() == 3, "three devices in use")
        rig.kubelet.remove(pods[1])
        eventually(lambda: in_use() == 1, "one device in use")
        rig.kubelet.stop()
        eventually(lambda: in_use() is None, "the usage to be unknown")
        rig.kubelet.start()
        eventually(lambda: in_use() == 1, "the usage to be known again")


def devices(address: str, resource: str) -> tuple[float | None, float | None]:
    def count(health: str) -> float | None:
        return figure(address, "gpuslice_devices", resource=resource, health=health)

    return count("healthy"), count("unhealthy")


def allocate(rig: Rig) -> None:
    assert rig.allocate(GPU, rig.node.gpus()[3].uuid)
