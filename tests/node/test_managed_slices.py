"""`gpuslice mps` and the agent: each GPU with memory slices has an MPS control daemon."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import is_running, wait_until_gone
from gpuslice_sim.mps.simcuda import HeldClient, run_client
from tests.timing import timing

from .conftest import MakeRig
from .managed_node import GIB, MANAGED, node, program, served, uuids, wait_until_all_healthy
from .mps_programs import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    PATIENCE,
    compute_modes,
    daemons,
    gpus_of,
    wait_until_ready,
)
from .rig import ALL, RESOURCE, Rig, eventually, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]


def slices(rig: Rig, uuid: str, count: int, first: int = 0) -> api.ContainerAllocateResponse:
    return rig.allocate(RESOURCE, *(f"{uuid}-_-{first + n}" for n in range(count)))


def client(rig: Rig, uuid: str, **more: str) -> HeldClient:
    """A CUDA program with slices of this GPU, which it keeps until it is stopped."""
    pipe = rig.mps_root / uuid / "pipe"
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_VISIBLE_DEVICES": uuid, **more}
    return HeldClient(rig.node.bin / "simcuda", env=env)


@pytest.mark.parametrize("driver", [535, 570], ids=["ordinal-keys", "uuid-keys"])
def test_a_container_uses_the_daemon_of_its_gpu_and_gets_exactly_its_slices(
    make_rig: MakeRig, driver: int
) -> None:
    rig = make_rig("t4x2", driver=driver)
    with node(rig):
        running = daemons(rig)
        assert sorted(running) == sorted(uuids(rig))
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2
        for uuid in uuids(rig):
            assert gpus_of(running[uuid]) == [uuid]
            answer = slices(rig, uuid, 3)
            assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{uuid}/pipe"
            mounts = {mount.container_path: mount.host_path for mount in answer.mounts}
            place = rig.mps_root / uuid
            assert mounts == {
                f"/mps/{uuid}/pipe": str(place / "pipe"),
                f"/mps/{uuid}/pipe/control_privileged": str(place / "pipe" / "control"),
                "/dev/shm": str(place / "shm"),
            }
            filled = rig.contained(answer, "fill")
            [device] = filled["devices"]
            assert (device["uuid"], device["sms"]) == (uuid, 8)
            assert device["limit_bytes"] == filled["total_bytes"] == 3 * GIB


def test_daemon_and_clients_share_memory_that_no_other_container_has(rig: Rig) -> None:
    with node(rig):
        for uuid, pid in daemons(rig).items():
            shm = rig.mps_root / uuid / "shm"
            (shm / "seen").touch()
            assert Path(f"/proc/{pid}/root/dev/shm/seen").exists()
        one, other = uuids(rig)
        (rig.mps_root / one / "shm" / "mine").touch()
        assert not (rig.mps_root / other / "shm" / "mine").exists()


def test_a_program_that_removes_its_limits_gets_no_more_than_all_slices(rig: Rig) -> None:
    with node(rig):
        uuid = uuids(rig)[1]
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(rig.mps_root / uuid / "pipe"),
            "CUDA_VISIBLE_DEVICES": uuid,
        }
        device = run_client(rig.node.bin / "simcuda", "info", env=env).device
        assert device["limit_bytes"] == 14 * GIB


def test_a_daemon_that_is_killed_affects_its_own_gpu_and_comes_back_with_its_limits(
    rig: Rig,
) -> None:
    with node(rig) as mps:
        one, other = uuids(rig)
        before = daemons(rig)
        with client(rig, other) as held:
            held.ready()
            os.kill(before[one], signal.SIGKILL)
            wait_until_gone(before[one])
            eventually(lambda: daemons(rig).get(one, before[one]) != before[one], "a new daemon")
            wait_until_all_healthy(rig)
            assert daemons(rig)[other] == before[other]
            assert is_running(held.pid)
        assert mps.logged(Code.MPS_EXITED, f"daemon={one}") == 1
        [device] = rig.contained(slices(rig, one, 2), "info")["devices"]
        assert device["limit_bytes"] == 2 * GIB


def test_slices_of_a_gpu_without_its_daemon_are_unhealthy_and_the_others_stay_healthy(
    rig: Rig,
) -> None:
    rig.config(MANAGED)
    one, other = uuids(rig)
    rig.node.faults.call(0, "nvmlDeviceSetComputeMode", 4)  # its daemon cannot be started
    with served(rig), program(rig, "agent", ALL) as agent:
        rig.kubelet.wait_for(RESOURCE)
        eventually(lambda: rig.healthy_units(other) == 14, "slices of the other GPU")
        assert rig.healthy_units(one) == 0
        agent.wait_for_code(
            Code.MPS_UNAVAILABLE, f"daemon={one} .*gpuslice mps.*<mps-root>/{one}/pipe on the host"
        )
        rig.node.faults.call(0, "nvmlDeviceSetComputeMode", 0)
        wait_until_all_healthy(rig)


def test_a_killed_program_leaves_daemons_that_the_next_one_adopts(rig: Rig) -> None:
    rig.config(MANAGED)
    with program(rig, "mps") as first:
        wait_until_ready(rig)
        before = daemons(rig)
        with client(rig, uuids(rig)[0]) as held:
            held.ready()
            first.kill()
            # The process that was killed is the one of the namespace.
            with served(rig) as second, program(rig, "agent", ALL):
                second.wait_for_code(Code.MPS_ADOPTED, times=2)
                wait_until_all_healthy(rig)
                assert daemons(rig) == before
                assert is_running(held.pid)
        assert daemons(rig) == {}


def test_daemons_of_a_killed_program_that_keep_gpus_of_new_ones_are_stopped(rig: Rig) -> None:
    """And no others: they may belong to another program."""
    devices = "sharing: {mps: {resources: [{name: gpu, devices: [%d], replicas: 2, rename: %s}]}}"
    with ExitStack() as stack:
        for number, name in ((0, "a"), (1, "b")):
            rig.config(devices % (number, name))
            killed = stack.enter_context(program(rig, "mps", "--memory-devices=none"))
            killed.wait_for_code(Code.MPS_STARTED, f"daemon=nvidia.com/{name}")
            killed.kill()
        assert sorted(daemons(rig)) == ["nvidia.com/a", "nvidia.com/b"]
        rig.config(MANAGED.replace("reserve", "devices: [0], reserve"))
        with served(rig) as mps:
            mps.wait_for_code(Code.MPS_REPLACED, "daemon=nvidia.com/a")
            mps.wait_for_code(Code.MPS_STARTED, f"daemon={uuids(rig)[0]}")
            assert sorted(daemons(rig)) == sorted([uuids(rig)[0], "nvidia.com/b"])
            assert not (rig.mps_root / "nvidia.com" / "a" / ".started").exists()
            assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2


def test_a_restarted_agent_finds_the_daemons(rig: Rig) -> None:
    rig.config(MANAGED)
    with served(rig):
        for _ in range(2):
            with program(rig, "agent", ALL) as agent:
                wait_until_all_healthy(rig)
                [device] = rig.contained(slices(rig, uuids(rig)[0], 6), "info")["devices"]
                assert device["limit_bytes"] == 6 * GIB
                assert agent.stop() == 0


def test_a_lost_gpu_affects_neither_the_other_nor_its_own_daemon(rig: Rig) -> None:
    with node(rig) as mps:
        one, other = uuids(rig)
        before = daemons(rig)
        with client(rig, other) as held:
            held.ready()
            rig.node.faults.lost(0)
            eventually(lambda: rig.healthy_units(one) == 0, "no slice of the lost GPU")
            # The program enumerates one GPU less.
            mps.send(signal.SIGHUP)
            mps.wait_for_code(Code.RECONCILED)
            assert rig.healthy_units(other) == 14
            rig.node.faults.restore(0)
            mps.send(signal.SIGHUP)
            mps.wait_for_code(Code.RECONCILED, times=2)
            assert is_running(held.pid)
        assert daemons(rig) == before


def test_a_gpu_that_is_added_gets_a_daemon_and_the_others_continue(rig: Rig) -> None:
    with node(rig):
        before = daemons(rig)
        with client(rig, uuids(rig)[0]) as held:
            held.ready()
            added = rig.node.faults.add_gpu("t4").uuid
            eventually(lambda: rig.healthy_units(added) == 14, "slices of the new GPU")
            assert is_running(held.pid)
        assert daemons(rig).items() > before.items()
        [device] = rig.contained(slices(rig, added, 14), "info")["devices"]
        assert (device["uuid"], device["limit_bytes"]) == (added, 14 * GIB)


def test_slices_can_change_to_a_daemon_of_somebody_else_and_back(rig: Rig) -> None:
    external = f"sharing: {{memory: {{mps: {{pipeDirectory: {rig.pipe}, check: off}}}}}}"
    with node(rig) as mps:
        rig.config(external)
        mps.wait_for_code(Code.NOTHING_TO_RUN, "mps-mode is external")
        eventually(lambda: not daemons(rig), "no daemon of ours")
        eventually(lambda: compute_modes(rig) == [DEFAULT] * 2, "the default mode")
        uuid = uuids(rig)[0]

        def pipe() -> str:
            return slices(rig, uuid, 1).envs["CUDA_MPS_PIPE_DIRECTORY"]

        eventually(lambda: pipe() == str(rig.pipe), "the pipe directory of the other daemon")
        rig.config(MANAGED)
        eventually(lambda: pipe() == f"/mps/{uuid}/pipe", "the pipe directory of ours")
        wait_until_all_healthy(rig)
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2


def test_a_daemon_waits_for_its_clients_before_it_stops(rig: Rig) -> None:
    with node(rig, env=timing(mps_drain=60)) as mps:
        one, other = uuids(rig)
        before = daemons(rig)
        with client(rig, one) as held:
            held.ready()
            mps.send(signal.SIGTERM)
            mps.wait_for_code(Code.MPS_DRAINING, f"daemon={one} programs=1")
            eventually(lambda: other not in daemons(rig), "the daemon without clients has stopped")
            # No container starts that would lose its daemon in a moment.
            eventually(lambda: rig.healthy_units(one) == 0, "slices are unhealthy")
            assert daemons(rig) == {one: before[one]}
            assert is_running(held.pid)
        assert mps.wait(PATIENCE) == 0
        assert mps.logged(Code.MPS_DRAINING, "they fail") == 0
        assert compute_modes(rig) == [DEFAULT] * 2
        assert not (rig.mps_root / one / ".draining").exists()


def test_a_daemon_does_not_wait_for_its_clients_for_ever(rig: Rig) -> None:
    with node(rig, env=timing(mps_drain=0.5)) as mps, client(rig, uuids(rig)[0]) as held:
        held.ready()
        assert mps.stop(PATIENCE) == 0
        assert mps.logged(Code.MPS_DRAINING, "they fail") == 1
        assert daemons(rig) == {}


def test_a_gpu_that_is_used_otherwise_waits_for_the_clients_of_its_slices(rig: Rig) -> None:
    first = MANAGED.replace("reserve", "devices: [0], reserve")
    one, other = uuids(rig)
    with node(rig, first, env=timing(mps_drain=60)) as mps:
        assert sorted(daemons(rig)) == [one]
        with client(rig, one) as held:
            held.ready()
            rig.config(MANAGED.replace("reserve", "devices: [1], reserve"))
            mps.wait_for_code(Code.MPS_DRAINING, f"daemon={one}")
            # The GPU that nothing uses does not wait.
            eventually(lambda: other in daemons(rig), "the daemon of the other GPU")
            assert one in daemons(rig)
            assert is_running(held.pid)
        eventually(lambda: sorted(daemons(rig)) == [other], "the first daemon has stopped")
        eventually(lambda: compute_modes(rig) == [DEFAULT, EXCLUSIVE_PROCESS], "its mode")


def test_limits_that_pods_cannot_override_name_the_daemon_of_the_gpu(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2", cdi=True)
    cdi = rig.directory / "cdi"
    with node(rig, MANAGED, "--bind=cdi", f"--cdi-directory={cdi}"):
        wanted = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=14G", "CUDA_MPS_PIPE_DIRECTORY": "/none"}
        pod = Pod("p", [Container("main", {RESOURCE: 5}, env=wanted)])
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        [device] = rig.contained(answer, "info")["devices"]
        assert device["limit_bytes"] == 5 * GIB
        assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{device['uuid']}/pipe"


def test_a_container_waits_while_the_daemon_of_its_gpu_is_down(rig: Rig) -> None:
    rig.config(MANAGED)
    with program(rig, "agent", ALL):
        with served(rig) as mps:
            wait_until_all_healthy(rig)
            pod = Pod("p", [Container("main", {RESOURCE: 5})])
            rig.kubelet.admit(pod)
            assert mps.stop(PATIENCE) == 0
        with pytest.raises(StartError, match=Code.MPS_UNAVAILABLE):
            rig.kubelet.start_container(pod, "main")
        with served(rig):
            wait_until_all_healthy(rig)
            answer = rig.kubelet.start_container(pod, "main")
            [device] = rig.contained(answer, "info")["devices"]
            assert device["limit_bytes"] == 5 * GIB


@pytest.mark.parametrize("mode", ["managed", "external"])
def test_one_user_at_a_time_is_a_warning_of_both_programs(make_rig: MakeRig, mode: str) -> None:
    rig = make_rig("t4x2", driver=550)
    external = f"sharing: {{memory: {{mps: {{pipeDirectory: {rig.pipe}, check: off}}}}}}"
    rig.config(MANAGED if mode == "managed" else external)
    with program(rig, "agent", ALL) as agent:
        [line] = agent.wait_for_code(Code.MPS_ONE_USER_AT_A_TIME, RESOURCE)
        assert "runAsUser" in line
    if mode == "managed":
        with served(rig) as mps:
            mps.wait_for_code(Code.MPS_ONE_USER_AT_A_TIME, RESOURCE)
