"""From the answer of Allocate to the memory and SMs that a CUDA program can use."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.probe import DaemonProbe
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import MpsDaemon
from tests.timing import timing

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig

GIB = 1 << 30
EXCLUSIVE_PROCESS = 3


def set_compute_mode(rig: Rig, gpu: int, mode: int) -> None:
    rig.node.set({f"gpu.{gpu}.compute_mode": mode})


def exclusive(rig: Rig) -> None:
    for gpu in rig.node.gpus():
        set_compute_mode(rig, gpu.index, EXCLUSIVE_PROCESS)


@pytest.fixture
def daemon(rig: Rig) -> Iterator[MpsDaemon]:
    exclusive(rig)
    mps = MpsDaemon(rig.node, rig.pipe, rig.directory / "log")
    mps.start()
    yield mps
    mps.stop()


@pytest.mark.parametrize("driver", [535, 570, 590, 615])
def test_a_client_is_limited_to_its_slice_on_every_driver(make_rig: MakeRig, driver: int) -> None:
    rig = make_rig("t4x2", driver=driver)
    exclusive(rig)
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        rig.agent("--mps-pipe", str(rig.pipe)),
    ):
        rig.wait_for_limits()
        for units, sms in ((1, 2), (3, 8), (6, 16), (12, 32)):  # of 15 GiB and 40 SMs
            pod = Pod(f"pod-{units}", [Container("main", {RESOURCE: units})])
            rig.kubelet.admit(pod)
            answer = rig.kubelet.start_container(pod, "main")
            [device] = rig.simcuda(answer, "info")["devices"]
            assert device["uuid"] == answer.envs["NVIDIA_VISIBLE_DEVICES"]
            assert device["limit_bytes"] == units * GIB
            assert device["sms"] == sms
            used = rig.simcuda(answer, "fill")
            assert used["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
            assert used["total_bytes"] == units * GIB
            rig.kubelet.remove(pod)


def test_every_size_on_every_gpu_of_a_mixed_node(make_rig: MakeRig) -> None:
    rig = make_rig("mixed")
    exclusive(rig)
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        rig.agent(ALL, "--mps-pipe", str(rig.pipe), "--memory-unit", "4GiB"),
    ):
        rig.wait_for_limits()
        seen = set()
        for number in range(8):
            pod = Pod(f"pod-{number}", [Container("main", {RESOURCE: 2})])
            rig.kubelet.admit(pod)
            answer = rig.kubelet.start_container(pod, "main")
            info = rig.simcuda(answer, "info")
            [device] = info["devices"]
            # The limit names only the GPU of the container: MPS ignores limits with unknown ones.
            assert info["warnings"] == []
            assert device["limit_bytes"] == 8 * GIB
            seen.add(device["uuid"])
        assert len(seen) > 1


def test_a_client_cannot_raise_its_limits_above_the_defaults_of_the_daemon(
    rig: Rig, daemon: MpsDaemon
) -> None:
    daemon.command("set_default_active_thread_percentage 50")
    gpu = rig.node.gpus()[0].uuid
    daemon.command(f"set_default_device_pinned_mem_limit {gpu} 4G")
    daemon.command("set_default_device_pinned_mem_limit 0 4G")
    with rig.agent("--mps-pipe", str(rig.pipe)):
        rig.wait_for_limits()
        pod = Pod("p", [Container("main", {RESOURCE: 12})])
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == gpu
        higher = {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{gpu}=15G",
        }
        for more in ({}, higher):
            [device] = rig.simcuda(answer, "info", **more)["devices"]
            assert device["limit_bytes"] == 4 * GIB
            assert device["sms"] == 20


def test_while_mps_is_down_slices_are_unhealthy_and_containers_wait(
    rig: Rig, daemon: MpsDaemon
) -> None:
    with rig.agent(ALL, "--mps-pipe", str(rig.pipe)) as agent:
        endpoint = rig.wait_for_limits()
        assert endpoint.options.pre_start_required
        assert rig.kubelet.allocatable(RESOURCE) == 30
        pod = Pod("p", [Container("main", {RESOURCE: 6})])
        rig.kubelet.admit(pod)
        rig.kubelet.start_container(pod, "main")
        os.kill(daemon.pid, signal.SIGKILL)  # its socket stays behind
        assert (rig.pipe / "control").exists()
        with pytest.raises(StartError, match=f"{Code.MPS_UNAVAILABLE}: .*no MPS control daemon"):
            rig.kubelet.start_container(pod, "main")
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 0, "all unhealthy")
        assert agent.logged(Code.MPS_UNAVAILABLE, f"daemon={RESOURCE}")
        daemon.start()
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 30, "recovery")
        answer = rig.kubelet.start_container(pod, "main")
        assert rig.simcuda(answer, "info")["devices"][0]["limit_bytes"] == 6 * GIB


def test_without_a_daemon_the_first_list_is_unhealthy(rig: Rig) -> None:
    with rig.agent("--mps-pipe", str(rig.pipe)):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 0
        assert rig.kubelet.capacity(RESOURCE) == 30


def test_without_the_control_program_the_first_list_is_unhealthy(rig: Rig) -> None:
    (rig.node.bin / "nvidia-cuda-mps-control").unlink()
    with rig.agent("--mps-pipe", str(rig.pipe)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 0
        assert "nvidia-cuda-mps-control is not on PATH" in agent.output()


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (None, "cannot be run (Permission denied)"),
        ("#!/bin/sh\nexit 3\n", "no MPS control daemon answers"),
        # It hangs, and a child keeps its output open.
        ("#!/bin/sh\nsleep 100 &\nsleep 100\n", "did not answer"),
    ],
)
def test_if_the_control_program_fails_the_first_list_is_unhealthy(
    rig: Rig, program: str | None, because: str
) -> None:
    path = rig.node.bin / "nvidia-cuda-mps-control"
    if program is None:
        path.chmod(0o644)
    else:
        path.write_text(program)
    with rig.agent("--mps-pipe", str(rig.pipe), env=timing(mps_command=1)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 0
        assert because in agent.output()
        assert agent.stop() == 0


def test_a_daemon_that_answered_once_must_answer_again(rig: Rig, daemon: MpsDaemon) -> None:
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "auto"):
        rig.wait_for_limits()
        pod = Pod("p", [Container("main", {RESOURCE: 6})])
        rig.kubelet.admit(pod)
        rig.kubelet.start_container(pod, "main")
        daemon.kill()
        shutil.rmtree(rig.pipe)
        with pytest.raises(StartError, match=f"{Code.MPS_UNAVAILABLE}: "):
            rig.kubelet.start_container(pod, "main")


def test_a_probe_that_was_cancelled_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\nsleep 0.5\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    async def scenario() -> MpsUnavailable | None:
        probe = DaemonProbe(Daemon(RESOURCE, "/x", "/x"), timeout_seconds=30)
        first = asyncio.create_task(probe.probe())
        await asyncio.sleep(0.1)
        second = asyncio.create_task(probe.probe())
        await asyncio.sleep(0.1)
        first.cancel()
        await second
        return probe.problem

    assert isinstance(asyncio.run(scenario()), MpsUnavailable)


def test_a_daemon_that_cannot_be_probed_is_assumed_to_run_with_a_warning(rig: Rig) -> None:
    with rig.agent(ALL, "--mps-pipe", str(rig.pipe), "--mps-check", "auto") as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        assert agent.logged(Code.MPS_NOT_VERIFIED) == 1


def test_a_daemon_that_can_be_probed_and_does_not_answer_is_not_assumed_to_run(
    rig: Rig, daemon: MpsDaemon
) -> None:
    os.kill(daemon.pid, signal.SIGKILL)
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "auto"):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 0


def test_a_gpu_that_can_be_used_without_mps_is_reported(rig: Rig) -> None:
    set_compute_mode(rig, 1, EXCLUSIVE_PROCESS)
    uuid = rig.node.gpus()[0].uuid
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "off") as agent:
        rig.kubelet.wait_for(RESOURCE)
        [line] = agent.wait_for_code(Code.NOT_EXCLUSIVE)
        assert f"nvidia-smi -i {uuid} -c EXCLUSIVE_PROCESS" in line


def test_a_process_without_the_pipe_directory_cannot_open_the_gpu(
    rig: Rig, daemon: MpsDaemon, tmp_path: Path
) -> None:
    del daemon
    with rig.agent("--mps-pipe", str(rig.pipe)):
        rig.wait_for_limits()
        pod = Pod("p", [Container("main", {RESOURCE: 6})])
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        rig.simcuda(answer, "info")  # from now on the server holds the GPU
        outcome = rig.simcuda(answer, "info", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
        assert outcome["error"] == "CUDA_ERROR_DEVICE_UNAVAILABLE"


def test_a_gpu_that_mps_cannot_limit_is_skipped(rig: Rig) -> None:
    rig.node.set({"gpu.0.cc": "6.1"})
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "off") as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 15
        agent.wait_for_code(Code.GPU_SKIPPED, "GPU 0 .*compute capability.* 6.1")


def test_a_node_whose_gpus_mps_cannot_limit_is_an_error(rig: Rig) -> None:
    rig.node.set({"gpu.0.cc": "6.1", "gpu.1.cc": "6.0"})
    with rig.agent("--mps-pipe", str(rig.pipe)) as agent:
        assert agent.wait() == 1
        assert "no GPU of this node can be advertised" in agent.output()


@pytest.mark.parametrize(("driver", "clients"), [(570, 48), (590, 60)])
def test_more_units_than_mps_clients_are_a_warning(
    make_rig: MakeRig, driver: int, clients: int
) -> None:
    rig = make_rig("a100-80x8", driver=driver)
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "off") as agent:
        rig.kubelet.wait_for(RESOURCE)
        agent.wait_for_code(
            Code.MORE_UNITS_THAN_CLIENTS, f"80 units, and MPS serves {clients} clients", times=8
        )


def test_twenty_containers_that_start_at_once_share_probes(rig: Rig, daemon: MpsDaemon) -> None:
    with rig.agent(ALL, "--mps-pipe", str(rig.pipe)), ThreadPoolExecutor(20) as pool:
        rig.wait_for_limits()
        pods = [Pod(f"pod-{n}", [Container("main", {RESOURCE: 1})]) for n in range(20)]
        for pod in pods:
            rig.kubelet.admit(pod)
        before = len(daemon.commands())
        answers = list(pool.map(lambda pod: rig.kubelet.start_container(pod, "main"), pods))
        assert len(answers) == 20
        # In addition, the agent probes every five seconds.
        assert len(daemon.commands()) - before < 15
