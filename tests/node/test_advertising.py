"""Which free devices are advertised: the scheduler must never see more than one pod can get."""

from __future__ import annotations

import signal

import grpc
import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address
from tests.timing import timing

from .conftest import MakeRig
from .rig import ALL, GPU, RESOURCE, Rig, eventually, needs_root
from .test_nvidia_metrics import figure

MERGED = """
sharing:
  mps: {failRequestsGreaterThanOne: false, resources: [{name: nvidia.com/gpu, replicas: 4}]}
"""


def pod(name: str, units: int, resource: str = RESOURCE) -> Pod:
    return Pod(name, [Container("main", {resource: units})])


def wait_for_allocatable(rig: Rig, count: int, resource: str = RESOURCE) -> None:
    kubelet = rig.kubelet
    kubelet.wait_until(
        lambda: kubelet.allocatable(resource) == count, f"{count} allocatable {resource}"
    )


def free(rig: Rig) -> int:
    """What the scheduler regards as free: allocatable minus what pods of the node request."""
    held = sum(len(allocation.ids) for allocation in rig.kubelet.allocations())
    return rig.kubelet.allocatable(RESOURCE) - held


def test_the_free_units_of_one_gpu_are_allocatable_and_all_units_are_capacity(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("t4x2")
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 30
        assert rig.kubelet.allocatable(RESOURCE) == 15


def test_allocatable_grows_by_what_containers_hold_until_every_gpu_is_full(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("t4x2")
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.admit(pod("a", 9))
        wait_for_allocatable(rig, 9 + 15)
        rig.kubelet.admit(pod("b", 9))
        wait_for_allocatable(rig, 9 + 9 + 6)
        rig.kubelet.admit(pod("c", 6))
        wait_for_allocatable(rig, 9 + 9 + 6 + 6)


def test_pods_that_fit_on_no_gpu_are_never_sent_to_the_node(make_rig: MakeRig) -> None:
    """A scheduler that trusts the allocatable number causes no rejection."""
    rig = make_rig("t4x2")
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        for number in range(6):
            if free(rig) >= 9:
                rig.kubelet.admit(pod(f"pod-{number}", 9))
                wait_for_allocatable(rig, 24)
        assert len(rig.kubelet.allocations()) == 2
        assert free(rig) == 6


def test_devices_of_pods_that_end_are_free_again(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    pods = [pod("a", 9), pod("b", 9)]
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        for one, allocatable in zip(pods, (9 + 15, 9 + 9 + 6), strict=True):
            rig.kubelet.admit(one)
            wait_for_allocatable(rig, allocatable)
        rig.kubelet.remove(pods[0])
        wait_for_allocatable(rig, 9 + 15)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_the_first_list_of_a_restarted_agent_is_right(
    make_rig: MakeRig, stop: signal.Signals
) -> None:
    rig = make_rig("t4x2")
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        for number, allocatable in enumerate((9 + 15, 9 + 9 + 6)):
            rig.kubelet.admit(pod(str(number), 9))
            wait_for_allocatable(rig, allocatable)
        agent.send(stop)
        agent.wait()
    # It never polls again after its first list.
    with rig.agent(name="again", env=timing(usage_poll=3600)):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 9 + 9 + 6


def test_the_choice_survives_a_restart_of_the_kubelet(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.admit(pod("a", 9))
        wait_for_allocatable(rig, 9 + 15)
        rig.kubelet.restart()
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 9 + 15


def test_another_gpu_is_advertised_if_the_chosen_one_is_unhealthy(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        [allocation] = rig.kubelet.admit(pod("a", 9))
        wait_for_allocatable(rig, 9 + 15)
        used = allocation.ids[0].partition("-_-")[0]
        [other] = [gpu for gpu in rig.node.gpus() if gpu.uuid != used]
        rig.node.faults.xid(other.index, 79)
        wait_for_allocatable(rig, 9 + 6)


def test_all_free_units_are_advertised_if_the_settings_say_so(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    with rig.agent(ALL):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30


def test_the_plugin_for_gpushares_scheduler_advertises_all_free_units(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    with rig.gpushare():
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30


def test_an_edit_of_the_setting_changes_what_is_allocatable(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    with rig.agent(rig.config("sharing: {memory: {advertise: all}}")):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        rig.config("sharing: {memory: {advertise: one-gpu}}")
        wait_for_allocatable(rig, 15)


def test_all_free_units_are_advertised_if_the_kubelet_does_not_tell_which_are_in_use(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("t4x2")
    rig.kubelet.stop()
    rig.kubelet.pod_resources_socket = None
    rig.kubelet.start()
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        agent.wait_for_code(Code.USAGE_UNKNOWN)


@needs_root
def test_merged_replicas_are_advertised_one_gpu_at_a_time(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    flags = [rig.config(MERGED), f"--mps-root={rig.mps_root}"]
    with rig.mps_daemon(GPU), rig.plugin(*flags, places={"/mps": rig.mps_root}):
        wait_for_allocatable(rig, 4, GPU)
        assert rig.kubelet.capacity(GPU) == 8
        rig.kubelet.admit(pod("a", 3, GPU))
        wait_for_allocatable(rig, 3 + 4, GPU)


def test_metrics_show_what_is_withheld_and_what_is_free_on_each_gpu(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    address = free_address()

    def devices(health: str) -> float | None:
        return figure(address, "gpuslice_devices", resource=RESOURCE, health=health)

    with rig.agent(f"--metrics-address={address}"):
        rig.kubelet.wait_for(RESOURCE)
        [allocation] = rig.kubelet.admit(pod("a", 9))
        wait_for_allocatable(rig, 9 + 15)
        eventually(lambda: devices("withheld") == 6, "6 units withheld")
        assert (devices("healthy"), devices("unhealthy")) == (24, 0)
        used = allocation.ids[0].partition("-_-")[0]
        for gpu in rig.node.gpus():
            expected = 6 if gpu.uuid == used else 15
            found = figure(address, "gpuslice_devices_free", resource=RESOURCE, uuid=gpu.uuid)
            assert found == expected


def rejections(agent: BackgroundProcess) -> int:
    return sum("Allocate rejected" in line for line in agent.log.read_text().splitlines())


def test_repeated_rejections_are_delayed(make_rig: MakeRig) -> None:
    """Otherwise a Deployment creates tens of pods per second that all fail."""
    rig = make_rig("t4x2")
    with rig.agent(ALL, env=timing(refusal=3600)) as agent:
        endpoint = rig.kubelet.wait_for(RESOURCE)
        first, second = rig.node.gpus()
        spread = [f"{first.uuid}-_-0", f"{second.uuid}-_-0"]
        with pytest.raises(grpc.RpcError, match=Code.SPANS_GPUS):
            rig.allocate(RESOURCE, *spread)
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=spread)]
        )
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            endpoint.call("Allocate", request, api.AllocateResponse, timeout=2.0)
        assert rejections(agent) == 2
        # Other requests do not wait.
        assert rig.allocate(RESOURCE, spread[0])
        assert endpoint.connected
