"""Memory limits that the driver enforces by cgroups: the real agent on the simulated driver 615."""

from __future__ import annotations

import os
import signal

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient, run_client

from .conftest import MakeRig
from .memory_limits import (
    FULL,
    GIB,
    agent,
    gpu_of,
    hard_limit,
    one_container,
    rig,
    root,
    simcuda,
    started,
)
from .rig import RESOURCE, Rig, eventually
from .test_limits_hold import exclusive
from .unified_cgroups import Cgroup, cgroup_root, needs_unified

__all__ = ["rig", "root"]

pytestmark = needs_unified


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
