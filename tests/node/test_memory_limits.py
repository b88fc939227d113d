"""Memory limits that the driver enforces by cgroups: the real agent on the simulated driver 615."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient, run_client
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address
from tests.unit.cluster.kubernetes import Kubernetes

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig, eventually
from .test_limits_hold import exclusive
from .test_node_config import kubernetes
from .test_watchdog import metrics
from .unified_cgroups import Cgroup, cgroup_root, needs_unified

__all__ = ["kubernetes"]

pytestmark = needs_unified

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


def test_two_processes_of_a_container_cannot_exceed_its_grant_together(
    rig: Rig, root: Cgroup
) -> None:
    exclusive(rig)
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        agent(rig, root, "driver", "--mps-pipe", str(rig.pipe)) as process,
    ):
        inside, answer = started(rig, root, one_container("p", 2))
        env = dict(answer.envs)
        with HeldClient(inside.program(simcuda(rig)), "--alloc", "1GiB", env=env) as first:
            held = GIB + int(first.ready()["devices"][0]["context_bytes"])
            second = run_client(inside.program(simcuda(rig)), "fill", env=env)
            assert second.error == FULL
            assert second.report["total_bytes"] == 2 * GIB - held
        [line] = process.wait_for_code(Code.MEMORY_LIMITED, "memory of a pod")
        assert "tier=driver" in line
        process.wait_for_code(Code.LIMITS_TIER, f'tier=driver resources="{RESOURCE}=driver"')


def test_without_mps_the_driver_limits_a_container_as_well(rig: Rig, root: Cgroup) -> None:
    with agent(rig, root, "auto"):
        inside, answer = started(rig, root, one_container("p", 3))
        filled = run_client(inside.program(simcuda(rig)), "fill", env=dict(answer.envs))
        assert (filled.error, filled.report["total_bytes"]) == (FULL, 3 * GIB)


def test_a_process_that_changes_its_environment_stays_limited(rig: Rig, root: Cgroup) -> None:
    """By its environment a process chooses MPS, and the limits of MPS. Not its cgroup."""
    exclusive(rig)
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        agent(rig, root, "auto", "--mps-pipe", str(rig.pipe)),
    ):
        inside, answer = started(rig, root, one_container("p", 2))
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(rig.pipe),
            "CUDA_VISIBLE_DEVICES": answer.envs["NVIDIA_VISIBLE_DEVICES"],
        }
        filled = run_client(inside.program(simcuda(rig)), "fill", env=env)
        assert (filled.error, filled.report["total_bytes"]) == (FULL, 2 * GIB)


def test_a_container_has_its_own_limit_as_soon_as_its_cgroup_exists(rig: Rig, root: Cgroup) -> None:
    with agent(rig, root):
        inside, answer = started(rig, root, one_container("p", 2))
        gpu = gpu_of(rig, answer)
        eventually(lambda: hard_limit(rig, gpu, inside) == 2 * GIB, "the limit of the container")
        # Then CUDA reports it.
        info = run_client(inside.program(simcuda(rig)), "info", env=dict(answer.envs))
        uuid = answer.envs["NVIDIA_VISIBLE_DEVICES"]
        [device] = [one for one in info.report["devices"] if one["uuid"] == uuid]
        assert device["free_bytes"] == 2 * GIB - device["context_bytes"]


def test_containers_of_one_pod_have_limits_of_their_own(rig: Rig, root: Cgroup) -> None:
    logs = rig.directory / "containers"
    logs.mkdir()
    pod = Pod("p", [Container("large", {RESOURCE: 5}), Container("small", {RESOURCE: 1})])
    with agent(rig, root, "driver", f"--container-logs={logs}"):
        rig.kubelet.admit(pod)
        limits = {"large": 5 * GIB, "small": GIB}
        cgroups = {}
        for name in limits:
            inside, answer = started(rig, root, pod, name)
            link = logs / f"p_default_{name}-{inside.path.name}.log"
            link.symlink_to(f"/var/log/pods/default_p_{pod.uid}/{name}/0.log")
            cgroups[name] = inside, gpu_of(rig, answer)

        def found() -> dict[str, int | None]:
            return {name: hard_limit(rig, gpu, inside) for name, (inside, gpu) in cgroups.items()}

        eventually(lambda: found() == limits, "the limits of the containers")
        on_one_gpu = len({gpu for _, gpu in cgroups.values()}) == 1
        assert hard_limit(rig, cgroups["large"][1], root.pod(pod)) == (
            6 * GIB if on_one_gpu else 5 * GIB
        )


def test_a_killed_agent_leaves_the_limits_and_the_next_one_completes_them(
    rig: Rig, root: Cgroup
) -> None:
    pod = one_container("p", 2)
    with agent(rig, root, "driver") as process:
        rig.kubelet.admit(pod)
        root.pod(pod)
        answer = rig.kubelet.start_container(pod, "main")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    inside, gpu, env = root.pod(pod).container(), gpu_of(rig, answer), dict(answer.envs)
    assert hard_limit(rig, gpu, inside) is None
    filled = run_client(inside.program(simcuda(rig)), "fill", env=env)
    assert (filled.error, filled.report["total_bytes"]) == (FULL, 2 * GIB)
    with agent(rig, root, "driver"):
        eventually(lambda: hard_limit(rig, gpu, inside) == 2 * GIB, "the limit of the container")


def test_an_agent_that_was_killed_between_allocate_and_start_lets_nothing_start_unlimited(
    rig: Rig, root: Cgroup
) -> None:
    pod = one_container("p", 2)
    with agent(rig, root, "driver") as process:
        rig.kubelet.admit(pod)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(StartError):
        rig.kubelet.start_container(pod, "main")
    rig.kubelet.restart()
    with agent(rig, root, "driver"):
        inside, answer = started(rig, root, pod)
        filled = run_client(inside.program(simcuda(rig)), "fill", env=dict(answer.envs))
        assert filled.report["total_bytes"] == 2 * GIB


def test_a_limit_that_somebody_raised_is_set_right(rig: Rig, root: Cgroup) -> None:
    with agent(rig, root) as process:
        pod = one_container("p", 2)
        inside, answer = started(rig, root, pod)
        gpu = gpu_of(rig, answer)
        eventually(lambda: hard_limit(rig, gpu, inside) == 2 * GIB, "the limit of the container")
        rig.node.set({f"gpu.{gpu}.limits.{root.pod(pod).below_mount}": f"0 {9 * GIB}"})
        process.wait_for_code(Code.MEMORY_LIMIT_CHANGED, f"pod{pod.uid}")
        assert hard_limit(rig, gpu, root.pod(pod)) == 2 * GIB


def test_without_the_dmem_controller_a_container_is_limited_after_it_started(rig: Rig) -> None:
    """Then the limit of a pod does not apply to its containers."""
    rig.node.set({"limits.flat": 1})
    pod = one_container("p", 2)
    with cgroup_root(rig.directory, dmem=False) as root:
        root.inner("kubepods")
        with agent(rig, root, "auto") as process:
            [line] = process.wait_for_code(Code.LIMITS_TIER)
            assert "tier=counted" in line
            assert "the kernel has no dmem controller" in line
            inside, answer = started(rig, root, pod)
            gpu = gpu_of(rig, answer)
            eventually(lambda: hard_limit(rig, gpu, inside) == 2 * GIB, "the limit")
            assert hard_limit(rig, gpu, root.pod(pod)) is None
            env = dict(answer.envs)
            with HeldClient(inside.program(simcuda(rig)), "--alloc", "1GiB", env=env) as first:
                held = GIB + int(first.ready()["devices"][0]["context_bytes"])
                second = run_client(inside.program(simcuda(rig)), "fill", env=env)
                assert (second.error, second.report["total_bytes"]) == (FULL, 2 * GIB - held)
        with (
            agent(rig, root, "driver"),
            pytest.raises(StartError, match="the kernel has no dmem controller"),
        ):
            rig.kubelet.start_container(pod, "main")


@pytest.mark.parametrize(("driver", "expected"), [(615, ("2048", "0")), (570, (None, "15000"))])
def test_the_toolkit_gets_the_limit_if_the_driver_has_limits(
    make_rig: MakeRig, driver: int, expected: tuple[str | None, str]
) -> None:
    """Its hook sets the limit before the program of the container runs."""
    rig = make_rig("t4x2", driver=driver, cdi=True)
    own = {"NVIDIA_GPU_MEMORY_REQUEST": "15000"}  # it would reserve the memory of others
    pod = Pod("p", [Container("main", {RESOURCE: 2}, env=own)])
    with cgroup_root(rig.directory) as root:
        root.inner("kubepods")
        flags = ("--bind=cdi", f"--cdi-directory={rig.directory / 'cdi'}")
        with agent(rig, root, "auto", *flags) as process:
            process.wait_for_code(Code.LIMITS_TIER)
            _, answer = started(rig, root, pod)
            names = ("NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST")
            assert tuple(answer.envs.get(name) for name in names) == expected


def break_set(rig: Rig) -> None:
    for gpu in rig.node.gpus():
        rig.node.faults.call(gpu.index, SET, "NO_PERMISSION")


def ignore_set(rig: Rig) -> None:
    for gpu in rig.node.gpus():
        rig.node.faults.ignore_memory_limits(gpu.index)


def remove_function(rig: Rig) -> None:
    for gpu in rig.node.gpus():
        for function in (SET, GET):
            rig.node.faults.call(gpu.index, function, "FUNCTION_NOT_FOUND")


@pytest.mark.parametrize(
    ("fail", "cause"),
    [
        (break_set, "limits need root on the node"),
        (ignore_set, "the driver accepted a limit of 2 GiB"),
        (remove_function, "the driver has no memory limits of cgroups"),
    ],
)
def test_a_container_waits_while_the_driver_must_limit_it_and_cannot(
    rig: Rig, root: Cgroup, fail: object, cause: str
) -> None:
    assert callable(fail)
    fail(rig)
    with agent(rig, root, "driver"):
        pod = one_container("p", 2)
        with pytest.raises(StartError, match=f"{Code.MEMORY_NOT_LIMITED}: .*{cause}"):
            started(rig, root, pod)
        for gpu in rig.node.gpus():
            rig.node.faults.call(gpu.index, SET, None)
            rig.node.faults.call(gpu.index, GET, None)
            rig.node.faults.ignore_memory_limits(gpu.index, ignored=False)
        inside, answer = started(rig, root, pod)
        filled = run_client(inside.program(simcuda(rig)), "fill", env=dict(answer.envs))
        assert filled.report["total_bytes"] == 2 * GIB


def test_a_container_waits_if_its_pod_has_no_cgroup(rig: Rig, root: Cgroup) -> None:
    with agent(rig, root, "driver"):
        pod = one_container("p", 2)
        rig.kubelet.admit(pod)
        with pytest.raises(StartError, match=f"pod {pod.uid} has no cgroup below"):
            rig.kubelet.start_container(pod, "main")
        started(rig, root, pod)


def test_auto_starts_the_container_on_a_lower_tier_and_says_so(rig: Rig, root: Cgroup) -> None:
    address = free_address()
    flags = ("--mps-pipe", str(rig.pipe), f"--metrics-address={address}")
    exclusive(rig)
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        agent(rig, root, "auto", *flags) as process,
    ):
        process.wait_for_code(Code.LIMITS_TIER, "tier=driver")
        assert metrics(address)['gpuslice_limits_tier{tier="driver"}'] == 1
        ignore_set(rig)
        started(rig, root, one_container("p", 2))
        process.wait_for_code(Code.MEMORY_NOT_LIMITED, "starts although")
        process.wait_for_code(Code.LIMITS_TIER, "tier=environment")
        found = metrics(address)
        assert found['gpuslice_limits_tier{tier="environment"}'] == 1
        assert found['gpuslice_memory_limits_set_total{result="error"}'] >= 1


@pytest.mark.parametrize("driver", [570, 590])
def test_an_older_driver_has_the_tier_of_its_environment(make_rig: MakeRig, driver: int) -> None:
    rig = make_rig("t4x2", driver=driver)
    exclusive(rig)
    with (
        cgroup_root(rig.directory) as root,
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
    ):
        root.inner("kubepods")
        with agent(rig, root, "auto", "--mps-pipe", str(rig.pipe)) as process:
            [line] = process.wait_for_code(Code.LIMITS_TIER)
            assert "tier=environment" in line
            assert "drivers from 615 on have them" in line
            pod = one_container("p", 2)
            rig.kubelet.admit(pod)
            rig.kubelet.start_container(pod, "main")
            [line] = process.wait_for_code(Code.ALLOCATED)
            assert "tier=environment" in line
            assert process.logged(Code.MEMORY_NOT_LIMITED) == 0
        with (
            agent(rig, root, "driver", "--mps-pipe", str(rig.pipe)),
            pytest.raises(StartError, match="drivers from 615 on have them"),
        ):
            rig.kubelet.start_container(pod, "main")


def test_the_node_has_labels_with_its_tier(rig: Rig, root: Cgroup) -> None:
    features = rig.directory / "features"
    config = rig.config(f"flags: {{gfd: {{outputFile: {features}}}}}")
    with agent(rig, root, "auto", "--labels=file", config):

        def published() -> set[str]:
            return set(features.read_text().splitlines()) if features.exists() else set()

        expected = {
            "gpuslice.io/limits.tier=driver",
            f"gpuslice.io/resource.{RESOURCE.replace('/', '_')}.tier=driver",
        }
        eventually(lambda: expected <= published(), "the labels")
        remove_function(rig)
        eventually(lambda: "gpuslice.io/limits.tier=counted" in published(), "the lower tier")


def test_a_directory_that_is_not_mounted_is_named(rig: Rig, root: Cgroup) -> None:
    with rig.agent(ALL, f"--cgroup-root={rig.directory}") as process:
        [line] = process.wait_for_code(Code.LIMITS_TIER)
        assert "tier=counted" in line
        assert f"{rig.directory} has no cgroups of version 2: mount" in line


def test_without_a_checkpoint_the_api_server_has_the_uid_of_the_pod(
    rig: Rig, root: Cgroup, kubernetes: Kubernetes
) -> None:
    """Another version of the kubelet may write another checkpoint."""
    env = {
        "NODE_NAME": "n1",
        "KUBECONFIG": str(kubernetes.kubeconfig(rig.directory / "kubeconfig")),
    }
    pod = one_container("p", 2)
    kubernetes.put("pods", "p", metadata={"namespace": "default", "uid": pod.uid})
    flags = (ALL, "--memory-limits=driver", f"--cgroup-root={root.path}")
    with rig.agent(*flags, env=env):
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.admit(pod)
        (rig.directory / "device-plugins" / "kubelet_internal_checkpoint").unlink()
        inside, answer = started(rig, root, pod)
        gpu = gpu_of(rig, answer)
        assert hard_limit(rig, gpu, root.pod(pod)) == 2 * GIB
        eventually(lambda: hard_limit(rig, gpu, inside) == 2 * GIB, "the limit of the container")


def test_a_pod_that_only_the_list_of_the_kubelet_has_is_not_certain(rig: Rig, root: Cgroup) -> None:
    """There is no API server either."""
    with agent(rig, root, "driver"):
        pod = one_container("p", 2)
        rig.kubelet.admit(pod)
        root.pod(pod)
        (rig.directory / "device-plugins" / "kubelet_internal_checkpoint").unlink()
        with pytest.raises(StartError, match="set node-name, and allow to get pods"):
            rig.kubelet.start_container(pod, "main")
