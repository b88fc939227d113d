"""How much of a GPU's threads containers get, by the strategy of the settings."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.mps.launch import MpsDaemon

from .mps_programs import MIB, advertised, served
from .rig import GPU, RESOURCE, Rig, needs_root

GIB = 1 << 30


@pytest.mark.parametrize(
    ("threads", "sms"),  # of one and of six units, of 15 units and 40 SMs
    [
        ("proportional", [2, 16]),
        ("uniform", [2, 2]),
        ("uniform-half", [4, 4]),
        ("30%", [12, 12]),
        ("20 SMs", [20, 20]),
        ("21 SMs", [20, 20]),  # whole TPCs
        ("none", [40, 40]),
    ],
)
def test_slices_have_the_threads_of_the_strategy(rig: Rig, threads: str, sms: list[int]) -> None:
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        rig.agent("--mps-pipe", str(rig.pipe), "--threads", threads),
    ):
        rig.wait_for_limits()
        for units, expected in zip((1, 6), sms, strict=True):
            pod = Pod(f"pod-{units}", [Container("main", {RESOURCE: units})])
            rig.kubelet.admit(pod)
            [device] = rig.simcuda(rig.kubelet.start_container(pod, "main"), "info")["devices"]
            assert (device["limit_bytes"], device["sms"]) == (units * GIB, expected)
            rig.kubelet.remove(pod)


def test_a_gpu_with_fewer_sms_than_the_limit_is_skipped(rig: Rig) -> None:
    rig.node.set({"gpu.0.sms": "20"})
    flags = ("--mps-pipe", str(rig.pipe), "--mps-check", "off", "--threads", "30 SMs")
    with rig.agent(*flags) as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 15
        agent.wait_for_code(Code.GPU_SKIPPED, "GPU 0 .*it has 20 SMs")


@needs_root
@pytest.mark.usefixtures("no_daemon_stays")
@pytest.mark.parametrize(
    ("threads", "sms"),  # of one and of two of four replicas
    [("uniform", [10, 10]), ("uniform-half", [20, 20]), ("30%", [12, 24]), ("14 SMs", [14, 28])],
)
def test_replicas_have_the_threads_of_the_strategy(rig: Rig, threads: str, sms: list[int]) -> None:
    text = (
        "sharing: {mps: {failRequestsGreaterThanOne: false, overcommit: allow, "
        f"resources: [{{name: gpu, replicas: 4, threads: {threads}}}]}}}}"
    )
    gpu = rig.node.gpus()[0].uuid
    with served(rig, text), advertised(rig, GPU):
        for count, expected in zip((1, 2), sms, strict=True):
            answer = rig.allocate(GPU, *(f"{gpu}::{number}" for number in range(count)))
            [device] = rig.contained(answer, "info")["devices"]
            assert (device["limit_bytes"], device["sms"]) == (count * 3840 * MIB, expected)
