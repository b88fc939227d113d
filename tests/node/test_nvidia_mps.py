"""Replicas by MPS: each container is limited to its share, or does not start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import AdmissionError, Container, Pod, StartError
from gpuslice_sim.process import BackgroundProcess

from .conftest import MakeRig
from .rig import ENTRY_POINTS, GPU, PLUGIN, Rig, needs_root

MIB = 1 << 20
SHARED = "nvidia.com/gpu.shared"

pytestmark = needs_root


def replicated(
    replicas: int,
    *,
    one_at_a_time: bool = False,
    rename: bool = True,
    reserve: str = "0",
    advertise: str = "one-gpu",
) -> str:
    return (
        f"sharing: {{mps: {{renameByDefault: {str(rename).lower()}, reserve: {reserve}, "
        f"advertise: {advertise}, "
        f"failRequestsGreaterThanOne: {str(one_at_a_time).lower()}, "
        f"resources: [{{name: gpu, replicas: {replicas}}}]}}}}"
    )


@contextmanager
def sharing(rig: Rig, text: str, *args: str, entry: str = PLUGIN) -> Iterator[BackgroundProcess]:
    places = {"/mps": rig.mps_root}
    root = f"--mps-root={rig.mps_root}"
    with rig.plugin(root, rig.config(text), *args, entry=entry, places=places) as plugin:
        yield plugin


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_a_client_is_limited_to_as_many_shares_as_it_requested(rig: Rig, entry: str) -> None:
    with rig.mps_daemon(SHARED), sharing(rig, replicated(5), entry=entry):
        endpoint = rig.wait_for_limits(SHARED)
        assert endpoint.options.pre_start_required
        assert rig.kubelet.capacity(SHARED) == 10
        for number, sms in ((1, 8), (3, 24), (5, 40)):  # of 15360 MiB and 40 SMs
            pod = Pod(f"pod-{number}", [Container("main", {SHARED: number})])
            [allocation] = rig.kubelet.admit(pod)
            assert len({i.partition("::")[0] for i in allocation.ids}) == 1
            answer = rig.kubelet.start_container(pod, "main")
            report = rig.contained(answer, "info")
            [device] = report["devices"]
            assert report["warnings"] == []
            assert device["uuid"] == allocation.ids[0].partition("::")[0]
            assert device["limit_bytes"] == number * 3072 * MIB
            assert device["sms"] == sms
            rig.kubelet.remove(pod)


def test_the_answer_names_the_daemon_of_the_resource_and_the_limits(rig: Rig) -> None:
    with rig.mps_daemon(SHARED), sharing(rig, replicated(10)):
        gpu = rig.node.gpus()[0].uuid
        answer = rig.allocate(SHARED, f"{gpu}::7")
        assert dict(answer.envs) == {
            "NVIDIA_VISIBLE_DEVICES": gpu,
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": f"/mps/{SHARED}/pipe",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{gpu}=1536M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        }
        assert [(m.host_path, m.container_path, m.read_only) for m in answer.mounts] == [
            (f"{rig.mps_root}/{SHARED}/pipe", f"/mps/{SHARED}/pipe", False),
            (
                f"{rig.mps_root}/{SHARED}/pipe/control",
                f"/mps/{SHARED}/pipe/control_privileged",
                False,
            ),
            (f"{rig.mps_root}/{SHARED}/shm", "/dev/shm", False),
        ]


def test_with_cdi_only_the_injection_of_the_gpu_differs(rig: Rig) -> None:
    flags = (
        "--device-list-strategy=cdi-cri",
        f"--cdi-directory={rig.directory / 'cdi'}",
        f"--driver-root-ctr-path={rig.node.root}",
    )
    with rig.mps_daemon(SHARED), sharing(rig, replicated(2), *flags):
        gpu = rig.node.gpus()[0].uuid
        answer = rig.allocate(SHARED, f"{gpu}::0")
        assert [d.name for d in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={gpu}"]
        assert "NVIDIA_VISIBLE_DEVICES" not in answer.envs
        assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{SHARED}/pipe"
        assert [m.container_path for m in answer.mounts] == [
            f"/mps/{SHARED}/pipe",
            f"/mps/{SHARED}/pipe/control_privileged",
            "/dev/shm",
        ]


def test_a_single_replica_is_the_whole_gpu_under_mps(rig: Rig) -> None:
    with rig.mps_daemon(GPU), sharing(rig, replicated(1, rename=False)):
        rig.wait_for_limits(GPU)
        pod = Pod("p", [Container("main", {GPU: 1})])
        [allocation] = rig.kubelet.admit(pod)
        assert allocation.ids[0].endswith("::0")
        [device] = rig.contained(rig.kubelet.start_container(pod, "main"), "info")["devices"]
        assert device["sms"] == 40
        assert device["limit_bytes"] == 15360 * MIB


def test_a_reserve_makes_every_share_smaller(rig: Rig) -> None:
    with rig.mps_daemon(SHARED), sharing(rig, replicated(4, reserve="512MiB")):
        rig.kubelet.wait_for(SHARED)
        for number in (1, 2, 4):  # of 15360 - 512 MiB
            pod = Pod(f"pod-{number}", [Container("main", {SHARED: number})])
            rig.kubelet.admit(pod)
            report = rig.contained(rig.kubelet.start_container(pod, "main"), "info")
            assert report["warnings"] == []
            [device] = report["devices"]
            assert device["limit_bytes"] == number * 3712 * MIB
            assert device["sms"] == number * 10
            rig.kubelet.remove(pod)


@pytest.mark.parametrize("reserve", ["0", "512MiB"])
def test_with_a_reserve_every_share_of_a_full_gpu_can_be_used_up(rig: Rig, reserve: str) -> None:
    """The MPS server needs memory of the GPU, so the shares together exceed what is left."""
    with rig.mps_daemon(SHARED), sharing(rig, replicated(2, reserve=reserve)):
        gpu = rig.node.gpus()[0].uuid
        first, second = (rig.allocate(SHARED, f"{gpu}::{n}") for n in range(2))
        [device] = rig.contained(first, "info")["devices"]
        limit = device["limit_bytes"]
        full = limit - int(rig.node.state.values()["cuda.context_bytes"])
        with rig.holding(first, "--alloc", str(full)) as neighbour:
            assert '"error":null' in neighbour.wait_for_output("\n").replace(" ", "")
            used = rig.contained(second, "fill")["total_bytes"]
        assert (used == limit) == (reserve != "0")


def test_another_reserve_needs_no_new_registration(rig: Rig) -> None:
    with rig.mps_daemon(SHARED), sharing(rig, replicated(4)) as plugin:
        gpu = rig.node.gpus()[0].uuid
        key = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
        assert rig.allocate(SHARED, f"{gpu}::0").envs[key] == f"{gpu}=3840M"
        rig.config(replicated(4, reserve="1GiB"))
        plugin.wait_for_code(Code.RECONCILED)
        assert rig.allocate(SHARED, f"{gpu}::0").envs[key] == f"{gpu}=3584M"
        assert rig.kubelet.registrations == 1


def test_a_gpu_in_mig_mode_is_skipped_by_mps(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-mixed")
    cut, whole = rig.node.gpus()
    with rig.mps_daemon(SHARED), sharing(rig, replicated(3)) as plugin:
        assert rig.wait_for_resources(SHARED) == {SHARED: [f"{whole.uuid}::{n}" for n in range(3)]}
        [line] = plugin.wait_for_code(Code.GPU_SKIPPED)
        assert cut.uuid in line
        assert "MIG mode" in line
        assert "migStrategy" in line
        with pytest.raises(grpc.RpcError, match=f"{Code.UNKNOWN_DEVICE}: "):
            rig.allocate(SHARED, f"{cut.uuid}::0")


def test_the_agent_waits_for_a_gpu_that_mps_can_limit(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-single")
    with sharing(rig, replicated(3)) as plugin:
        [line] = plugin.wait_for_code(Code.WAITING_FOR_GPUS)
        for gpu in rig.node.gpus():
            assert gpu.uuid in line
        assert "MIG mode" in line
        assert rig.kubelet.registrations == 0
        rig.node.faults.mig(1, [])
        one = rig.node.gpus()[1].uuid
        assert rig.wait_for_resources(SHARED) == {SHARED: [f"{one}::{n}" for n in range(3)]}


def test_shares_of_different_gpus_are_never_granted_together(rig: Rig) -> None:
    with rig.mps_daemon(SHARED), sharing(rig, replicated(4, advertise="all")):
        rig.wait_for_limits(SHARED)
        one, two = (gpu.uuid for gpu in rig.node.gpus())
        with pytest.raises(grpc.RpcError, match=f"{Code.SPANS_GPUS}: "):
            rig.allocate(SHARED, f"{one}::0", f"{two}::0")
        for name in ("a", "b"):  # three of each GPU are in use
            rig.kubelet.admit(Pod(name, [Container("main", {SHARED: 3})]))
        with pytest.raises(AdmissionError, match="no single GPU of this node has 2 replicas free"):
            rig.kubelet.admit(Pod("c", [Container("main", {SHARED: 2})]))


def test_more_than_one_share_is_rejected_unless_the_settings_allow_it(rig: Rig) -> None:
    with rig.mps_daemon(SHARED), sharing(rig, replicated(4, one_at_a_time=True)):
        rig.wait_for_limits(SHARED)
        with pytest.raises(AdmissionError, match=f"{Code.REQUEST_TOO_LARGE}: "):
            rig.kubelet.admit(Pod("p", [Container("main", {SHARED: 2})]))


def test_while_the_daemon_is_down_replicas_are_unhealthy_and_containers_wait(rig: Rig) -> None:
    daemon = rig.mps_daemon(SHARED)
    daemon.start()
    try:
        with sharing(rig, replicated(2)) as plugin:
            rig.wait_for_limits(SHARED)
            pod = Pod("p", [Container("main", {SHARED: 1})])
            rig.kubelet.admit(pod)
            daemon.kill()
            with pytest.raises(StartError, match=f"{Code.MPS_UNAVAILABLE}: "):
                rig.kubelet.start_container(pod, "main")
            rig.wait_for_healthy(SHARED, set())
            assert plugin.logged(Code.MPS_UNAVAILABLE, f"daemon={SHARED}")
            assert rig.kubelet.registrations == 1
            daemon.start()
            rig.wait_for_limits(SHARED)
            assert rig.kubelet.start_container(pod, "main")
    finally:
        daemon.stop()


def test_without_a_daemon_replicas_are_advertised_as_unhealthy(rig: Rig) -> None:
    with sharing(rig, replicated(2)):
        rig.kubelet.wait_for(SHARED)
        assert rig.kubelet.capacity(SHARED) == 4
        assert rig.kubelet.allocatable(SHARED) == 0


def test_a_missing_daemon_does_not_affect_other_resources(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    text = """
sharing:
  mps: {resources: [{name: gpu, devices: [0], replicas: 2, rename: gpu.limited}]}
  timeSlicing: {resources: [{name: gpu, devices: [1], replicas: 3, rename: gpu.shared}]}
"""
    with sharing(rig, text):
        rig.wait_for_resources("nvidia.com/gpu.limited", SHARED, GPU)
        assert rig.kubelet.allocatable("nvidia.com/gpu.limited") == 0
        assert rig.kubelet.allocatable(SHARED) == 3
        assert rig.kubelet.allocatable(GPU) == 2
        assert (
            "CUDA_MPS_PIPE_DIRECTORY"
            not in rig.allocate(SHARED, f"{rig.node.gpus()[1].uuid}::2").envs
        )


def test_whole_gpus_of_the_same_resource_do_not_need_the_daemon(rig: Rig) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, devices: [0], replicas: 4}]}}"
    daemon = rig.mps_daemon(GPU)
    daemon.start()
    try:
        with sharing(rig, text):
            rig.kubelet.wait_for(GPU)
            shared, whole = (gpu.uuid for gpu in rig.node.gpus())
            replicas = {f"{shared}::{number}" for number in range(4)}
            rig.wait_for_healthy(GPU, {whole, *replicas})
            daemon.kill()
            rig.wait_for_healthy(GPU, {whole})
            assert rig.kubelet.allocatable(GPU) == 1
            pod = Pod("p", [Container("main", {GPU: 1})])
            [given] = rig.kubelet.admit(pod)
            assert given.ids == [whole]
            [device] = rig.contained(rig.kubelet.start_container(pod, "main"), "info")["devices"]
            assert (device["uuid"], device["sms"]) == (whole, 40)
            with pytest.raises(grpc.RpcError, match=f"{Code.MPS_UNAVAILABLE}: "):
                before_start(rig, GPU, f"{shared}::0")
    finally:
        daemon.stop()


def before_start(rig: Rig, resource: str, *ids: str) -> None:
    """Calls PreStartContainer like the kubelet."""
    request = api.PreStartContainerRequest(devices_ids=ids)
    endpoint = rig.kubelet.wait_for(resource)
    endpoint.call("PreStartContainer", request, api.PreStartContainerResponse, 20)
