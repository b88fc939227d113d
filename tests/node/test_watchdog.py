"""The watchdog of the real agent: processes in real cgroups, on the simulated driver with MPS."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address, open_directly
from tests.unit.cluster.kubernetes import Kubernetes

from .cgroups import RunningContainer, container, needs_cgroups
from .rig import RESOURCE, Rig, eventually
from .test_limits_hold import exclusive
from .test_node_config import kubernetes

__all__ = ["kubernetes"]

pytestmark = needs_cgroups

GIB = 1 << 30
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"
TERMINATE = ("--watchdog-mode=terminate", "--watchdog-grace=0s")


@pytest.fixture
def daemon(rig: Rig) -> Iterator[MpsDaemon]:
    exclusive(rig)
    with MpsDaemon(rig.node, rig.pipe, rig.directory / "log") as mps:
        yield mps


def logs(rig: Rig) -> Path:
    return rig.directory / "containers"


def agent(rig: Rig, *args: str, env: dict[str, str] | None = None) -> BackgroundProcess:
    logs(rig).mkdir(exist_ok=True)
    return rig.agent("--mps-pipe", str(rig.pipe), f"--container-logs={logs(rig)}", *args, env=env)


def admitted(rig: Rig, units: int, name: str = "pod") -> tuple[Pod, api.ContainerAllocateResponse]:
    pod = Pod(name, [Container("main", {RESOURCE: units})])
    rig.kubelet.admit(pod)
    return pod, rig.kubelet.start_container(pod, "main")


@contextlib.contextmanager
def client(
    rig: Rig, answer: api.ContainerAllocateResponse, inside: RunningContainer | None, size: str
) -> Iterator[HeldClient]:
    """A CUDA program that holds memory, as a process of the container."""
    program = rig.node.bin / "simcuda"
    held = HeldClient(program, "--alloc", size, env=dict(answer.envs))
    try:
        held.ready()
        if inside is not None:
            inside.add(held.pid)
        yield held
    finally:
        held.stop()


def metrics(address: str) -> dict[str, float]:
    _, text = open_directly(f"http://{address}/metrics")
    return {
        name: float(value)
        for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    }


def test_two_processes_that_each_take_the_limit_are_reported(rig: Rig, daemon: MpsDaemon) -> None:
    address = free_address()
    with agent(rig, f"--metrics-address={address}") as running:
        rig.wait_for_limits()
        pod, answer = admitted(rig, 2)
        with (
            container(logs(rig), pod, "main") as inside,
            client(rig, answer, inside, "1500MiB"),
        ):
            uuid = answer.envs["NVIDIA_VISIBLE_DEVICES"]
            labels = f'container="main",namespace="default",pod="pod",uuid="{uuid}"'
            used = f"gpuslice_container_memory_bytes{{{labels}}}"
            eventually(lambda: used in metrics(address), "the memory of the container")
            assert running.logged(Code.MEMORY_EXCEEDED) == 0
            # MPS allows each process as much as the container has.
            with client(rig, answer, inside, "1500MiB") as second:
                [line] = running.wait_for_code(Code.MEMORY_EXCEEDED)
                assert "container=default/pod/main" in line
                assert "processes=2" in line
                found = metrics(address)
                assert found[used] > 3000 << 20
                assert found[f"gpuslice_container_memory_granted_bytes{{{labels}}}"] == 2 * GIB
                allowed = 2 * GIB + 2 * 256 * (1 << 20)
                assert found[f"gpuslice_container_memory_allowed_bytes{{{labels}}}"] == allowed
                assert found[f'gpuslice_memory_violations_total{{uuid="{uuid}"}}'] == 1
                assert found["gpuslice_watchdog_watching"] == 1
                second.stop()
            running.wait_for_code(Code.MEMORY_WITHIN_GRANT)
            assert running.logged(Code.PROCESS_TERMINATED) == 0


def test_mps_ends_the_newest_process_and_the_first_one_goes_on(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig, *TERMINATE) as running:
        rig.wait_for_limits()
        pod, answer = admitted(rig, 2)
        neighbour_pod, neighbour_answer = admitted(rig, 2, "neighbour")
        with (
            container(logs(rig), pod, "main") as inside,
            container(logs(rig), neighbour_pod, "main") as beside,
            client(rig, neighbour_answer, beside, "1500MiB") as neighbour,
            client(rig, answer, inside, "1500MiB") as first,
            client(rig, answer, inside, "1500MiB") as second,
        ):
            assert second.next_report()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
            [line] = running.wait_for_code(Code.PROCESS_TERMINATED)
            assert f"pid={second.pid}" in line
            running.wait_for_code(Code.MEMORY_WITHIN_GRANT)
            assert first.stop() == 0
            assert neighbour.stop() == 0
            running.wait_for_code(Code.LIMITS_TIER, "tier=watched")
            # MPS was asked, and no signal was sent.
            assert any(text.startswith("terminate_client") for text in daemon.commands())
            assert running.logged(Code.PROCESS_KILLED) == 0


def test_a_process_that_mps_does_not_know_is_killed(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig, *TERMINATE) as running:
        rig.wait_for_limits()
        pod, _ = admitted(rig, 2)
        with container(logs(rig), pod, "main") as inside:
            process = subprocess.Popen(["sleep", "600"])
            inside.add(process.pid)
            gpu = rig.kubelet.allocations(pod)[0].response.envs["NVIDIA_VISIBLE_DEVICES"]
            rig.node.faults.add_process(gpu, process.pid, 5 * GIB)
            assert process.wait(60) == -signal.SIGKILL
            running.wait_for_code(Code.PROCESS_NOT_ENDED, "not a client of MPS")
            running.wait_for_code(Code.PROCESS_KILLED, f"pid={process.pid}")


def test_memory_of_a_gpu_that_was_not_granted_counts(rig: Rig, daemon: MpsDaemon) -> None:
    """Through MPS, a program sees every GPU of the daemon."""
    with agent(rig, *TERMINATE) as running:
        rig.wait_for_limits()
        pod, answer = admitted(rig, 4)
        own = answer.envs["NVIDIA_VISIBLE_DEVICES"]
        [other] = [gpu.uuid for gpu in rig.node.gpus() if gpu.uuid != own]
        answer.envs["CUDA_VISIBLE_DEVICES"] = other
        with (
            container(logs(rig), pod, "main") as inside,
            client(rig, answer, inside, "2GiB") as thief,
        ):
            running.wait_for_code(Code.MEMORY_EXCEEDED, f"gpu={other}")
            assert thief.next_report()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def test_a_process_that_cannot_be_attributed_is_never_touched(rig: Rig, daemon: MpsDaemon) -> None:
    """Without a cgroup, without a name, without a grant, or with a name that two pods have."""
    address = free_address()
    with agent(rig, *TERMINATE, f"--metrics-address={address}") as running:
        rig.wait_for_limits()
        pod, answer = admitted(rig, 1)
        twin = Pod("twin", [Container("main", {RESOURCE: 1})])
        rig.kubelet.admit(twin)
        stranger = Pod("stranger", [Container("main", {})])
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            nameless = enter(container(logs(rig), pod, "main"))
            nameless.link.unlink()
            without_grant = enter(container(logs(rig), stranger, "main"))
            doubled = enter(container(logs(rig), twin, "main"))
            enter(container(logs(rig), twin, "main"))
            uuid = answer.envs["NVIDIA_VISIBLE_DEVICES"]
            processes = []
            for inside in (None, nameless, without_grant, doubled):
                process = subprocess.Popen(["sleep", "600"])
                stack.callback(process.wait)
                stack.callback(process.kill)
                processes.append(process)
                if inside is not None:
                    inside.add(process.pid)
                rig.node.faults.add_process(uuid, process.pid, 3 * GIB)
            eventually(
                lambda: metrics(address).get("gpuslice_unattributed_processes") == 4,
                "four processes that are not attributed",
            )
            known = enter(container(logs(rig), pod, "main"))
            victim = subprocess.Popen(["sleep", "600"])
            known.add(victim.pid)
            rig.node.faults.add_process(uuid, victim.pid, 3 * GIB)
            # By then, the watchdog has had time for the others.
            assert victim.wait(60) == -signal.SIGKILL
            assert [process.poll() for process in processes] == [None] * 4
            assert running.logged(Code.MEMORY_EXCEEDED) == 1


def test_without_the_rights_the_watchdog_is_off_and_says_so(rig: Rig, daemon: MpsDaemon) -> None:
    missing = rig.directory / "missing"
    with rig.agent("--mps-pipe", str(rig.pipe), f"--container-logs={missing}") as running:
        rig.wait_for_limits()
        [line] = running.wait_for_code(Code.WATCHDOG_OFF)
        assert f"{missing} does not exist: mount it from the host" in line
        missing.mkdir()
        running.wait_for_code(Code.WATCHDOG_ON)


def test_the_mode_can_change_while_the_agent_runs(rig: Rig, daemon: MpsDaemon) -> None:
    text = "version: v1\nwatchdog: {{mode: {}, grace: 0s}}\n"
    with agent(rig, rig.config(text.format("off"))) as running:
        rig.wait_for_limits()
        assert running.logged(Code.WATCHDOG_ON) == 0
        rig.config(text.format("report"))
        running.wait_for_code(Code.WATCHDOG_ON, "mode=report")
        rig.config(text.format("terminate"))
        running.wait_for_code(Code.WATCHDOG_ON, "mode=terminate")


def test_while_the_driver_does_not_answer_nothing_is_done(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig, *TERMINATE) as running:
        rig.wait_for_limits()
        running.wait_for_code(Code.WATCHDOG_ON)
        for gpu in rig.node.gpus():
            rig.node.faults.call(gpu.index, LIST, "UNKNOWN")
        running.wait_for_code(Code.WATCHDOG_BLIND, LIST)
        for gpu in rig.node.gpus():
            rig.node.faults.call(gpu.index, LIST, None)
        running.wait_for_code(Code.WATCHDOG_ON, "works again")


def test_a_pod_is_evicted_and_has_events(
    rig: Rig, daemon: MpsDaemon, kubernetes: Kubernetes
) -> None:
    env = {
        "NODE_NAME": "n1",
        "KUBECONFIG": str(kubernetes.kubeconfig(rig.directory / "kubeconfig")),
    }
    with agent(rig, "--watchdog-mode=evict", "--watchdog-grace=0s", env=env) as running:
        rig.wait_for_limits()
        pod, answer = admitted(rig, 2)
        kubernetes.put("pods", "pod", metadata={"namespace": "default"})
        with (
            container(logs(rig), pod, "main") as inside,
            client(rig, answer, inside, "1500MiB"),
            client(rig, answer, inside, "1500MiB"),
        ):
            running.wait_for_code(Code.POD_EVICTED, "default/pod/main")
            [eviction, *_] = kubernetes.evictions
            assert eviction["metadata"]["name"] == "pod"
            assert eviction["deleteOptions"]["preconditions"] == {"uid": inside.pod_uid}

            def reasons() -> set[str]:
                return {
                    event["reason"]
                    for (kind, _), event in list(kubernetes.objects.items())
                    if kind == "events" and event["involvedObject"].get("uid") == inside.pod_uid
                }

            eventually(
                lambda: reasons() == {Code.MEMORY_EXCEEDED, Code.POD_EVICTED}, "events of the pod"
            )


def test_without_an_api_server_evict_only_reports(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig, "--watchdog-mode=evict", "--watchdog-grace=0s") as running:
        rig.wait_for_limits()
        running.wait_for_code(Code.POD_NOT_EVICTED, "set node-name")
