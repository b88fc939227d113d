"""An agent that lets the driver limit the memory of containers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.process import BackgroundProcess

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig
from .unified_cgroups import Cgroup, cgroup_root

GIB = 1 << 30
FULL = "CUDA_ERROR_OUT_OF_MEMORY"
SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("t4x2", driver=615)


@pytest.fixture
def root(rig: Rig) -> Iterator[Cgroup]:
    with cgroup_root(rig.directory) as root:
        root.inner("kubepods")
        yield root


@contextlib.contextmanager
def agent(rig: Rig, root: Cgroup, mode: str = "driver", *args: str) -> Iterator[BackgroundProcess]:
    flags = (ALL, f"--memory-limits={mode}", f"--cgroup-root={root.path}", *args)
    with rig.agent(*flags) as process:
        process.wait_for_code(Code.REGISTERED)
        rig.wait_for_limits()
        yield process
    # Otherwise the kubelet may still use its connection when the next agent has registered.
    rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 0, "the end of the agent")


def one_container(name: str, units: int) -> Pod:
    return Pod(name, [Container("main", {RESOURCE: units})])


def started(
    rig: Rig, root: Cgroup, pod: Pod, name: str = "main"
) -> tuple[Cgroup, api.ContainerAllocateResponse]:
    """The kubelet creates the cgroup of the pod first, and then asks whether it may start."""
    if not rig.kubelet.allocations(pod):
        rig.kubelet.admit(pod)
    cgroup = root.pod(pod)
    answer = rig.kubelet.start_container(pod, name)
    return cgroup.container(), answer


def hard_limit(rig: Rig, gpu: int, cgroup: Cgroup) -> int | None:
    text = rig.node.state.values().get(f"gpu.{gpu}.limits.{cgroup.below_mount}")
    if text is None:
        return None
    soft, hard = map(int, text.split())
    assert soft == 0  # a reservation could outlive its cgroup
    return hard


def gpu_of(rig: Rig, answer: api.ContainerAllocateResponse) -> int:
    [index] = [
        gpu.index for gpu in rig.node.gpus() if gpu.uuid == answer.envs["NVIDIA_VISIBLE_DEVICES"]
    ]
    return index


def simcuda(rig: Rig) -> Path:
    return rig.node.bin / "simcuda"
