"""Named shares of different sizes on each GPU, with limits that pods cannot override."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuslice.codes import Code
from gpuslice.slicing.threads import sms_at

from .bound import greedy, specifications
from .harness import Cluster
from .harness.daemonset import DaemonSetAgent
from .harness.node import Mps
from .pods import GIB, check_devices, device_pod, event

NODE, GPU = "node-w", "nvidia.com/gpu"
LARGE, SMALL = f"{GPU}.large", f"{GPU}.small"
# The larger part of the threads has the smaller part of the memory.
CONFIG = f"""\
version: v1
sharing:
  mps:
    resources:
      - name: {GPU}
        shares:
          - {{name: large, threads: 60%, memory: 2GiB}}
          - {{name: small, threads: 20%, memory: 3GiB, count: 2}}
"""
LIMITS = {LARGE: (2, 60), SMALL: (3, 20)}


@pytest.fixture
def mps(whole: DaemonSetAgent) -> Iterator[Mps]:
    """The daemon of the shares, where NVIDIA's has its pipe."""
    node = whole.node
    directory = f"/run/nvidia/mps/{GPU}"
    node.run(["mkdir", "-p", f"{directory}/pipe", f"{directory}/shm"])
    daemon = node.mps_daemon("mps-gpu", f"{directory}/pipe")
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.mark.usefixtures("mps")
def test_every_pod_has_exactly_its_share_beside_all_others(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    gpus = len(whole.node.sim.gpus())
    specifications(whole.node).mkdir(exist_ok=True)  # the patch for CDI mounts it
    whole.start({LARGE: gpus, SMALL: 2 * gpus}, config=CONFIG, GPUSLICE_BIND="cdi")
    pods = {f"large-{number}": LARGE for number in range(gpus)}
    pods |= {f"small-{number}": SMALL for number in range(2 * gpus)}
    for name, resource in pods.items():
        nvidia.create(greedy(device_pod(name, NODE, {resource: 1}, mps=True), whole.node))
    for name, resource in pods.items():
        nvidia.wait_for_pod(name)
        found = check_devices(nvidia, NODE, name)
        gpu = whole.node.sim.gpu(found.device["uuid"])
        memory_gib, percent = LIMITS[resource]
        assert found.gpu_nodes == (f"nvidia{gpu.minor}",)
        assert found.device["limit_bytes"] == memory_gib * GIB
        assert found.device["sms"] == sms_at(percent, gpu.sms)


@pytest.mark.usefixtures("mps")
def test_a_container_with_two_shares_waits_with_an_event(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    gpus = len(whole.node.sim.gpus())
    whole.start({LARGE: gpus, SMALL: 2 * gpus}, config=CONFIG)
    nvidia.create(device_pod("both", NODE, {LARGE: 1, SMALL: 1}, mps=True))
    told = event(nvidia, "both", "Failed")
    assert f"{Code.MIXED_SHARES}: " in told
    assert "request one of these resources, or use a container for each" in told
