"""What happens if the driver cannot limit the memory of a container."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import StartError
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import run_client
from tests.surroundings import free_address
from tests.unit.cluster.kubernetes import Kubernetes

from .conftest import MakeRig
from .memory_limits import (
    GET,
    GIB,
    SET,
    agent,
    gpu_of,
    hard_limit,
    one_container,
    rig,
    root,
    simcuda,
    started,
)
from .rig import ALL, RESOURCE, Rig, eventually
from .test_limits_hold import exclusive
from .test_node_config import kubernetes
from .test_watchdog import metrics
from .unified_cgroups import Cgroup, cgroup_root, needs_unified

__all__ = ["kubernetes", "rig", "root"]

pytestmark = needs_unified


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
