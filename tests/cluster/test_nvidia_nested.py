"""Nodes within containers: what such a container sees, and what an agent inside makes of it."""

from __future__ import annotations

import pytest

from .harness import Cluster
from .harness.daemonset import DaemonSetAgent
from .pods import assigned_devices, device_pod, seen

NODE, GPU = "node-w", "nvidia.com/gpu"


def test_a_nested_node_sees_all_gpus_and_offers_its_own(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    whole.start({GPU: 4}, NESTED="host")
    everything = ",".join(gpu.uuid for gpu in whole.node.sim.gpus())
    with whole.logging(f"NVIDIA_VISIBLE_DEVICES={everything}"):
        nvidia.create(device_pod("inner", NODE, {GPU: 2}))
    nvidia.wait_for_pod("inner")
    found = seen(nvidia, "inner")
    assert set(found.gpu_nodes) == {f"nvidia{gpu.minor}" for gpu in whole.node.sim.gpus()}
    own = assigned_devices(nvidia, NODE, "inner")
    assert len(own) == 2
    assert set(found.variables["NVIDIA_ALLOCATED_DEVICES"].split(",")) == own
    line = f"NVIDIA_ALLOCATED_DEVICES={found.variables['NVIDIA_ALLOCATED_DEVICES']}\n"
    assert found.text.count(line) == 2  # of the environment, and of the file
    place = found.variables["NVIDIA_ALLOCATED_DEVICES_FILE"]
    assert nvidia.kubectl("exec", "inner", "--", "cat", place) == line
    with pytest.raises(RuntimeError, match="Read-only file system"):
        nvidia.kubectl("exec", "inner", "--", "sh", "-c", f"echo >> {place}")
    # The path of the original plugin is free for the container.
    nvidia.kubectl("exec", "inner", "--", "sh", "-c", "echo > /gpu.env")

    nvidia.delete_pods("inner")
    file = whole.node.directory / "gpu.env"
    file.write_text(line)
    whole.start({GPU: 2}, NESTED="guest", NESTED_ENV=str(file))
    assert set(nvidia.allocatable_devices(NODE)[GPU]) == own
    nvidia.create(device_pod("leaf", NODE, {GPU: 1}))
    nvidia.wait_for_pod("leaf")
    assert assigned_devices(nvidia, NODE, "leaf") < own
