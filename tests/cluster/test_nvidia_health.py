"""Errors of GPUs, as the scheduler sees them."""

from __future__ import annotations

from .harness import Cluster
from .harness.daemonset import DaemonSetAgent
from .pods import check_devices, device_pod

GPU = "nvidia.com/gpu"
REPLICAS = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}"


def test_a_broken_gpu_takes_all_its_replicas_along(nvidia: Cluster, whole: DaemonSetAgent) -> None:
    whole.start({GPU: 12}, config=REPLICAS)
    broken = whole.node.sim.gpu(0)
    whole.node.sim.faults.xid(0, 13)  # an application's own mistake
    whole.node.sim.faults.xid(0, 79)
    whole.wait_for({GPU: 9})
    assert nvidia.amount("node-w", "capacity", GPU) == 12
    left = nvidia.allocatable_devices("node-w")[GPU]
    assert not [device_id for device_id in left if device_id.startswith(broken.uuid)]
    nvidia.create(device_pod("rest", "node-w", {GPU: 9}))
    nvidia.wait_for_pod("rest")
    assert f"nvidia{broken.minor}" not in check_devices(nvidia, "node-w", "rest").gpu_nodes


def test_an_error_within_a_mig_device_leaves_its_neighbours(
    nvidia: Cluster, cut: DaemonSetAgent
) -> None:
    cut.start({GPU: 14}, MIG_STRATEGY="single")
    gpu = cut.node.sim.gpu(1)
    struck = gpu.mig[2]
    cut.node.sim.faults.xid(1, 94, struck.gi, struck.ci)
    cut.wait_for({GPU: 13})
    assert struck.uuid not in nvidia.allocatable_devices("node-m")[GPU]
    cut.node.sim.faults.xid(1, 79)
    cut.wait_for({GPU: 7})
