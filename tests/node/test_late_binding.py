"""Limits as CDI specifications, written for each container when it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig, eventually
from .test_nvidia_metrics import figure

GIB = 1 << 30
EXCLUSIVE_PROCESS = 3


@pytest.fixture
def rig(make_rig: MakeRig) -> Iterator[Rig]:
    """With MPS and a container runtime that applies CDI."""
    rig = make_rig("t4x2", cdi=True)
    for gpu in rig.node.gpus():
        rig.node.set({f"gpu.{gpu.index}.compute_mode": EXCLUSIVE_PROCESS})
    with MpsDaemon(rig.node, rig.pipe, rig.directory / "log"):
        yield rig


@contextmanager
def agent(rig: Rig, bind: str = "cdi", *args: str) -> Iterator[BackgroundProcess]:
    flags = (ALL, "--mps-pipe", str(rig.pipe), f"--cdi-directory={cdi(rig)}", f"--bind={bind}")
    with rig.agent(*flags, *args) as process:
        rig.wait_for_limits()
        yield process


def cdi(rig: Rig) -> Path:
    return rig.directory / "cdi"


def specifications(rig: Rig) -> list[Path]:
    return sorted(cdi(rig).glob("gpuslice.io-c*.json"))


def one_container(name: str, units: int, **env: str) -> Pod:
    return Pod(name, [Container("main", {RESOURCE: units}, env=env)])


def greedy(rig: Rig) -> dict[str, str]:
    """What a pod can set in its own manifest to get the whole GPU."""
    uuids = [gpu.uuid for gpu in rig.node.gpus()]
    return {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{uuid}=15G" for uuid in uuids),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": "all",
        "ALIYUN_COM_GPU_MEM_POD": "15",
    }


@pytest.mark.parametrize("bind", ["cdi", "auto"])
def test_a_pod_cannot_override_its_limits(rig: Rig, bind: str) -> None:
    with agent(rig, bind):
        pod = one_container("p", 1, **greedy(rig))
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        [device] = rig.simcuda(answer, "info")["devices"]
        assert device["limit_bytes"] == GIB
        assert device["sms"] == 2
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == device["uuid"]
        assert answer.envs["ALIYUN_COM_GPU_MEM_POD"] == "1"


def test_by_environment_a_pod_can_override_its_limits(rig: Rig) -> None:
    """Why there is late binding."""
    with agent(rig, "env"):
        pod = one_container("p", 1, **greedy(rig))
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        assert rig.simcuda(answer, "info")["devices"][0]["limit_bytes"] == 15 * GIB


def test_a_runtime_that_ignores_cdi_gives_a_container_no_gpu_if_cdi_is_required(rig: Rig) -> None:
    with agent(rig, "cdi"):
        rig.kubelet.runtime = None
        pod = one_container("p", 1)
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert not answer.mounts


def test_auto_limits_containers_of_a_runtime_that_ignores_cdi_and_reports_it(rig: Rig) -> None:
    assert rig.kubelet.runtime is not None
    rig.kubelet.runtime.stop()
    rig.kubelet.runtime = None
    with agent(rig, "auto") as process:
        pod = one_container("p", 6)
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        assert rig.simcuda(answer, "info")["devices"][0]["limit_bytes"] == 6 * GIB
        process.wait_for_code(Code.BOUND_BY_ENVIRONMENT, "no container runtime reads")


def test_without_the_directory_auto_uses_the_environment_and_reports_it(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    flags = ("--mps-pipe", str(rig.pipe), "--mps-check=off", f"--cdi-directory={cdi(rig)}")
    with rig.agent(*flags) as process:
        rig.kubelet.wait_for(RESOURCE)
        process.wait_for_code(Code.BOUND_BY_ENVIRONMENT, f"{cdi(rig)} does not exist")
        pod = one_container("p", 6)
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        assert answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].endswith("=6144M")
        assert not answer.cdi_devices
    with rig.agent(*flags, "--bind=cdi") as process:
        assert process.wait() == 1
        assert "bind: cdi cannot be used" in process.output()


def test_every_container_of_a_pod_gets_the_total_of_the_pod(rig: Rig) -> None:
    with agent(rig):
        pod = Pod(
            "p",
            [
                Container("first", {RESOURCE: 6}, init=True),
                Container("one", {RESOURCE: 4}),
                Container("two", {RESOURCE: 3}),
            ],
        )
        rig.kubelet.admit(pod)
        for name, units in (("first", 6), ("one", 4), ("two", 3)):
            answer = rig.kubelet.start_container(pod, name)
            assert answer.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(units)
            assert answer.envs["ALIYUN_COM_GPU_MEM_POD"] == "7"
            assert rig.simcuda(answer, "info")["devices"][0]["limit_bytes"] == units * GIB


def test_an_init_container_with_the_only_slice_of_its_pod_starts(rig: Rig) -> None:
    with agent(rig):
        pod = Pod("p", [Container("first", {RESOURCE: 2}, init=True), Container("main", {})])
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "first")
        assert rig.simcuda(answer, "info")["devices"][0]["limit_bytes"] == 2 * GIB


def test_containers_restart_after_the_agent_restarted_and_the_node_rebooted(rig: Rig) -> None:
    pod = one_container("p", 3)
    with agent(rig):
        rig.kubelet.admit(pod)
        before = rig.kubelet.start_container(pod, "main")
    for path in cdi(rig).iterdir():  # /run is empty after a reboot
        path.unlink()
    rig.kubelet.restart()
    with agent(rig):
        assert rig.kubelet.start_container(pod, "main") == before


def test_containers_restart_after_the_settings_changed_from_cdi_to_env(rig: Rig) -> None:
    pod = one_container("p", 3)
    with agent(rig, "cdi"):
        rig.kubelet.admit(pod)
        before = rig.kubelet.start_container(pod, "main")
    for path in cdi(rig).iterdir():
        path.unlink()
    with agent(rig, "env"):
        assert rig.kubelet.start_container(pod, "main") == before


def test_specifications_of_pods_that_are_gone_are_removed(rig: Rig) -> None:
    with agent(rig) as process:
        pods = [one_container(f"pod-{number}", 2) for number in range(3)]
        for pod in pods:
            rig.kubelet.admit(pod)
            rig.kubelet.start_container(pod, "main")
        assert len(specifications(rig)) == 3
        rig.kubelet.remove(pods[1])
        eventually(lambda: len(specifications(rig)) == 2, "one specification is removed")
        process.wait_for_code(Code.BOUND_SPEC_REMOVED)
        rig.kubelet.start_container(pods[0], "main")


def test_a_container_waits_while_its_limits_cannot_be_written(rig: Rig) -> None:
    with agent(rig):
        pod = one_container("p", 3)
        rig.kubelet.admit(pod)
        aside = rig.directory / "aside"
        cdi(rig).rename(aside)
        with pytest.raises(StartError, match=f"{Code.CDI_SPEC_NOT_WRITTEN}: .*cannot be written"):
            rig.kubelet.start_container(pod, "main")
        aside.rename(cdi(rig))
        answer = rig.kubelet.start_container(pod, "main")
        assert rig.simcuda(answer, "info")["devices"][0]["limit_bytes"] == 3 * GIB


def test_a_container_of_a_pod_that_the_kubelet_does_not_know_waits(rig: Rig) -> None:
    with agent(rig):
        pod = one_container("p", 3)
        rig.kubelet.admit(pod)
        assert rig.kubelet.pod_resources_socket is not None
        rig.kubelet.pod_resources_socket.rename(rig.directory / "aside.sock")
        checkpoint = rig.kubelet.directory / "kubelet_internal_checkpoint"
        content = checkpoint.read_text()
        checkpoint.unlink()
        with pytest.raises(StartError, match=f"{Code.POD_UNKNOWN}: .*does not exist"):
            rig.kubelet.start_container(pod, "main")
        checkpoint.write_text(content)
        rig.kubelet.start_container(pod, "main")


def test_twenty_pods_that_start_at_once_get_exactly_their_own_limits(rig: Rig) -> None:
    with agent(rig), ThreadPoolExecutor(20) as pool:
        sizes = {f"pod-{number}": 1 + number % 2 for number in range(20)}
        pods = {name: one_container(name, size, **greedy(rig)) for name, size in sizes.items()}
        for pod in pods.values():
            rig.kubelet.admit(pod)
        answers = dict(
            zip(
                pods,
                pool.map(lambda pod: rig.kubelet.start_container(pod, "main"), pods.values()),
                strict=True,
            )
        )
        for name, size in sizes.items():
            limit = answers[name].envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
            assert limit.endswith(f"={size * 1024}M")


def test_specifications_are_removed_at_the_end_if_the_settings_ask_for_it(rig: Rig) -> None:
    with agent(rig, "cdi", "--cdi-remove-on-exit") as process:
        pod = one_container("p", 3)
        rig.kubelet.admit(pod)
        rig.kubelet.start_container(pod, "main")
        [path] = specifications(rig)
        assert json.loads(path.read_text())["kind"] == "gpuslice.io/container"
        assert process.stop() == 0
    assert not specifications(rig)


@pytest.mark.parametrize(("bind", "by"), [("auto", "cdi"), ("env", "env")])
def test_label_and_metric_tell_how_containers_get_their_limits(
    rig: Rig, bind: str, by: str
) -> None:
    address = free_address()
    labels = rig.directory / "gfd"
    text = f"flags: {{gfd: {{outputFile: {labels}}}}}\nsharing: {{memory: {{}}}}"
    flags = ("--labels=file", rig.config(text), f"--metrics-address={address}")
    with agent(rig, bind, *flags) as process:
        process.wait_for_code(Code.BOUND_BY_CDI if by == "cdi" else Code.BOUND_BY_ENVIRONMENT)
        line = f"gpuslice.io/limits.bind={by}"
        eventually(lambda: labels.exists() and line in labels.read_text(), line)
        assert figure(address, "gpuslice_limits_bound", by=by) == 1
