"""GPUs that fail, and the health of their memory units."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpuslice.codes import Code
from gpuslice_sim.process import BackgroundProcess
from tests.timing import timing

from .conftest import MakeRig
from .rig import ALL, GPU, RESOURCE, Rig


def cpu_seconds(process: BackgroundProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_fatal_xid_makes_every_slice_of_that_gpu_unhealthy_and_no_other(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("v100x4")
    gpus = [gpu.uuid for gpu in rig.node.gpus()]
    with rig.agent(ALL) as agent:
        endpoint = rig.kubelet.wait_for(RESOURCE)
        agent.wait_for_code(Code.REGISTERED)
        lists = endpoint.lists
        rig.node.faults.xid(2, 79)
        rig.kubelet.wait_until(lambda: rig.healthy_units(gpus[2]) == 0, "GPU 2 unhealthy")
        assert [rig.healthy_units(uuid) for uuid in gpus] == [32, 32, 0, 32]
        assert rig.kubelet.capacity(RESOURCE) == 128
        assert endpoint.lists == lists + 1  # all its slices in one message
        assert agent.logged(Code.XID, f"uuid={gpus[2]} .*XID 79") == 1


def test_pods_go_to_the_healthy_gpus(rig: Rig) -> None:
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        sick, well = (gpu.uuid for gpu in rig.node.gpus())
        rig.node.faults.xid(0, 48)
        rig.kubelet.wait_until(lambda: rig.healthy_units(sick) == 0, "GPU 0 unhealthy")
        assert rig.admit(6).response.envs["NVIDIA_VISIBLE_DEVICES"] == well


def test_an_application_error_leaves_the_gpu_healthy(rig: Rig) -> None:
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        first, second = (gpu.uuid for gpu in rig.node.gpus())
        for xid in (13, 31, 43, 45, 68, 109):
            rig.node.faults.xid(0, xid)
        rig.node.faults.xid(1, 79)  # comes last: the others have been read by then
        rig.kubelet.wait_until(lambda: rig.healthy_units(second) == 0, "GPU 1 unhealthy")
        assert rig.healthy_units(first) == 15


def test_a_gpu_lost_without_an_event_becomes_unhealthy_and_the_others_stay_healthy(
    rig: Rig,
) -> None:
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        first, second = (gpu.uuid for gpu in rig.node.gpus())
        rig.node.faults.lost(0)
        rig.kubelet.wait_until(lambda: rig.healthy_units(first) == 0, "GPU 0 unhealthy")
        assert rig.healthy_units(second) == 15


def test_a_gpu_lost_before_the_start_is_skipped_and_the_others_are_advertised(rig: Rig) -> None:
    first, second = (gpu.uuid for gpu in rig.node.gpus())
    rig.node.faults.lost(0)
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.healthy_units(second) == 15
        assert rig.healthy_units(first) == 0
        agent.wait_for_code(Code.GPU_SKIPPED, "GPU 0")


def test_a_gpu_whose_errors_cannot_be_watched_is_unhealthy_in_the_first_list(
    rig: Rig,
) -> None:
    """The watch starts before anything is advertised, so no error is missed."""
    first, second = (gpu.uuid for gpu in rig.node.gpus())
    rig.node.faults.call(0, "nvmlDeviceRegisterEvents", "UNKNOWN")
    with rig.agent():
        endpoint = rig.kubelet.wait_for(RESOURCE)
        assert (rig.healthy_units(first), rig.healthy_units(second)) == (0, 15)
        assert endpoint.lists == 1


def test_an_event_wait_that_fails_causes_no_busy_loop_and_no_unhealthy_gpu(rig: Rig) -> None:
    with rig.agent(ALL) as agent:
        rig.kubelet.wait_for(RESOURCE)
        rig.node.faults.event_wait("UNKNOWN")
        time.sleep(0.6)  # until the current wait ends
        before = cpu_seconds(agent)
        time.sleep(2.0)
        assert cpu_seconds(agent) - before < 0.5
        assert rig.kubelet.allocatable(RESOURCE) == 30
        rig.node.faults.event_wait(None)
        rig.node.faults.xid(1, 79)
        second = rig.node.gpus()[1].uuid
        rig.kubelet.wait_until(lambda: rig.healthy_units(second) == 0, "GPU 1 unhealthy")


def test_gpus_whose_event_waits_keep_failing_are_unhealthy_until_they_are_watched_again(
    rig: Rig,
) -> None:
    with rig.plugin(env=timing(gpu_unwatched=0.5)) as agent:
        rig.wait_for_resources(GPU)
        gpus = {gpu.uuid for gpu in rig.node.gpus()}
        rig.node.faults.event_wait("UNKNOWN")
        rig.wait_for_healthy(GPU, set())
        assert agent.logged(Code.GPU_NOT_WATCHED, "uuid=all") == 1
        rig.node.faults.event_wait(None)
        rig.wait_for_healthy(GPU, gpus)
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, gpus - {rig.node.gpus()[0].uuid})


def test_an_event_set_that_cannot_be_made_is_tried_again(rig: Rig) -> None:
    rig.node.faults.event_set("OPERATING_SYSTEM")
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        assert rig.healthy(GPU) == set()
        assert agent.logged(Code.GPU_NOT_WATCHED, "uuid=all") == 1
        rig.node.faults.event_set(None)
        gpus = {gpu.uuid for gpu in rig.node.gpus()}
        rig.wait_for_healthy(GPU, gpus)
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, gpus - {rig.node.gpus()[0].uuid})


def test_a_gpu_that_cannot_be_registered_for_events_is_tried_again_alone(rig: Rig) -> None:
    first, second = (gpu.uuid for gpu in rig.node.gpus())
    rig.node.faults.call(0, "nvmlDeviceRegisterEvents", "UNKNOWN")
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        assert rig.healthy(GPU) == {second}
        rig.node.faults.call(0, "nvmlDeviceRegisterEvents", None)
        rig.wait_for_healthy(GPU, {first, second})
        assert agent.logged(Code.GPU_NOT_WATCHED, f"uuid={first}") == 1
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, {second})


def test_health_checks_can_be_turned_off(rig: Rig) -> None:
    with rig.agent(ALL, "--no-health-checks") as agent:
        rig.kubelet.wait_for(RESOURCE)
        rig.node.faults.xid(0, 79)
        time.sleep(1.0)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        assert agent.logged(Code.XID) == 0
