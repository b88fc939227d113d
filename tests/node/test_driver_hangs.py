"""NVML calls that do not return: what the programs of a node do meanwhile, and afterwards."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address
from tests.timing import timing

from .conftest import MakeRig
from .mps_programs import daemons, quarters, served
from .rig import AGENT, BIN, GPU, PLUGIN, Rig, eventually, needs_root
from .test_node_config import get
from .test_nvidia_metrics import figure

# Long enough for any call that does not hang.
QUICK = timing(driver_answer=1.5, driver_open=3.0)
# Longer than any test: SIGTERM comes before the hang is noticed.
UNNOTICED = timing(driver_answer=600.0, driver_open=600.0)
# Far below what a program that waits for the driver needs.
PROMPT_SECONDS = 20.0
RENAMED = "nvidia.com/gpu.shared"
REPLICAS = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, rename: gpu.shared}]}}"


def uuids(rig: Rig) -> list[str]:
    return [gpu.uuid for gpu in rig.node.gpus()]


def noticed(agent: BackgroundProcess) -> None:
    agent.wait_for_code(Code.DRIVER_NOT_RESPONDING, "GPU is unhealthy")


def test_a_driver_that_hangs_makes_every_device_unhealthy_until_it_answers(rig: Rig) -> None:
    address = free_address()
    with rig.plugin(f"--metrics-address={address}", env=QUICK) as agent:
        rig.wait_for_resources(GPU)
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready")
        rig.node.faults.hang()
        rig.wait_for_healthy(GPU, set())
        [line] = agent.lines(Code.DRIVER_NOT_RESPONDING, "GPU is unhealthy")
        assert "uuid=all" in line
        assert get(address, "/healthz")[0] == 200
        status, reason = get(address, "/readyz")
        assert status == 503
        assert "the driver does not answer" in reason
        for uuid in uuids(rig):
            assert figure(address, "gpuslice_gpu_healthy", uuid=uuid) == 0
        rig.node.faults.hang(hangs=False)
        rig.wait_for_healthy(GPU, set(uuids(rig)))
        assert agent.logged(Code.FAULT_CLEARED) == 1
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready again")
        # The GPUs are enumerated again, and their health is watched again.
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, {uuids(rig)[1]})
        assert agent.logged(Code.GPU_LOST) == 0


def test_a_gpu_that_hangs_is_unhealthy_alone(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    sick, broken, *well = uuids(rig)
    with rig.plugin(env=QUICK) as agent:
        rig.wait_for_resources(GPU)
        rig.node.faults.hang(0)
        rig.wait_for_healthy(GPU, {broken, *well})
        agent.wait_for_code(Code.DRIVER_NOT_RESPONDING, f"uuid={sick}")
        rig.node.faults.xid(1, 79)
        rig.wait_for_healthy(GPU, set(well))
        # A new enumeration does not wait for it, either, and forgets the XID.
        agent.send(signal.SIGHUP)
        rig.wait_for_healthy(GPU, {broken, *well})
        rig.node.faults.hang(0, hangs=False)
        rig.wait_for_healthy(GPU, {sick, broken, *well})


@pytest.mark.parametrize("function", ["nvmlEventSetWait_v2", "nvmlDeviceGetCount_v2"])
def test_one_function_that_hangs_is_noticed(function: str, rig: Rig) -> None:
    with rig.plugin(env=QUICK):
        rig.wait_for_resources(GPU)
        rig.node.faults.hang(function=function)
        rig.wait_for_healthy(GPU, set())
        rig.node.faults.hang(function=function, hangs=False)
        rig.wait_for_healthy(GPU, set(uuids(rig)))


@pytest.mark.parametrize("reset", [False, True], ids=["edit", "edit-and-sighup"])
def test_edits_of_the_configuration_apply_while_the_driver_hangs(rig: Rig, reset: bool) -> None:
    with rig.plugin(rig.config("version: v1"), env=QUICK) as agent:
        rig.wait_for_resources(GPU)
        rig.node.faults.hang()
        noticed(agent)
        rig.config(REPLICAS)
        if reset:
            agent.send(signal.SIGHUP)
        rig.wait_for_resources(RENAMED)
        assert rig.healthy(RENAMED) == set()
        assert len(rig.kubelet.devices(RENAMED)) == 4
        if reset:
            agent.wait_for_code(Code.DRIVER_NOT_RESPONDING, "settings apply to the GPUs")
        rig.node.faults.hang(hangs=False)
        rig.wait_for_healthy(RENAMED, {f"{uuid}::{n}" for uuid in uuids(rig) for n in (0, 1)})


def test_an_edit_right_after_sighup_is_not_lost(rig: Rig) -> None:
    """The enumeration hangs and is not noticed yet."""
    with rig.plugin(rig.config("version: v1"), env=QUICK) as agent:
        rig.wait_for_resources(GPU)
        rig.node.faults.hang(function="nvmlInit")
        agent.send(signal.SIGHUP)
        rig.config(REPLICAS)
        rig.wait_for_resources(RENAMED)
        rig.node.faults.hang(function="nvmlInit", hangs=False)
        rig.wait_for_healthy(RENAMED, {f"{uuid}::{n}" for uuid in uuids(rig) for n in (0, 1)})
        # The session that the late nvmlInit opened is closed: new GPUs are enumerated.
        added = rig.node.faults.add_gpu("t4").uuid
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: f"{added}::0" in rig.healthy(RENAMED), "the third GPU")


@pytest.mark.parametrize("times", [QUICK, UNNOTICED], ids=["noticed", "unnoticed"])
@pytest.mark.parametrize("entry", [AGENT, PLUGIN])
def test_sigterm_ends_an_agent_whose_driver_hangs(
    entry: str, times: dict[str, str], rig: Rig
) -> None:
    with rig.plugin(entry=entry, env=times) as agent:
        rig.wait_for_resources(GPU)
        rig.node.faults.hang()
        if times is QUICK:
            noticed(agent)
        agent.send(signal.SIGHUP)
        assert agent.stop(PROMPT_SECONDS) == 0
        assert agent.logged(Code.STOPPED) == 1
        assert agent.logged(Code.STOP_FORCED) == 0
        assert [path.name for path in rig.kubelet.directory.glob("*.sock")] == ["kubelet.sock"]


def test_an_agent_whose_driver_hangs_at_start_waits_for_it(rig: Rig) -> None:
    address = free_address()
    rig.node.faults.hang()
    flags = ("--fail-on-init-error=false", f"--metrics-address={address}")
    with rig.plugin(*flags, env=QUICK) as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS, "nvmlInit has not returned")
        assert get(address, "/healthz")[0] == 200
        assert get(address, "/readyz")[0] == 503
        rig.node.faults.hang(hangs=False)
        rig.wait_for_resources(GPU)
        rig.wait_for_healthy(GPU, set(uuids(rig)))


def test_an_agent_whose_driver_hangs_at_start_exits_if_told_to(rig: Rig) -> None:
    rig.node.faults.hang()
    with rig.plugin("--fail-on-init-error=true", entry=AGENT, env=QUICK) as agent:
        assert agent.wait(PROMPT_SECONDS) == 1
        assert f"{Code.DRIVER_NOT_RESPONDING}: the driver does not answer" in agent.output()


def test_calls_that_hang_again_and_again_leave_no_threads(rig: Rig) -> None:
    with rig.plugin(env=timing(driver_answer=0.7, driver_open=1.0)) as agent:
        rig.wait_for_resources(GPU)
        counts = []
        for _ in range(4):
            rig.node.faults.hang()
            rig.wait_for_healthy(GPU, set())
            agent.send(signal.SIGHUP)
            rig.node.faults.hang(hangs=False)
            rig.wait_for_healthy(GPU, set(uuids(rig)))
            counts.append(agent.threads())
        assert counts[-1] <= counts[0] + 2, counts


@needs_root
@pytest.mark.usefixtures("no_daemon_stays")
def test_mps_daemons_stay_while_the_driver_hangs_and_the_program_ends(rig: Rig) -> None:
    with served(rig, quarters(), env=QUICK) as program:
        eventually(lambda: daemons(rig), "the daemon")
        before = daemons(rig)
        rig.node.faults.hang(function="nvmlDeviceGetCount_v2")
        noticed(program)
        program.send(signal.SIGHUP)
        program.wait_for_code(Code.DRIVER_NOT_RESPONDING, "settings apply to the GPUs")
        assert daemons(rig) == before
        rig.node.faults.hang(function="nvmlDeviceGetCount_v2", hangs=False)
        program.wait_for_code(Code.FAULT_CLEARED)
        rig.node.faults.hang(function="nvmlDeviceGetCount_v2")
        program.wait_for_code(Code.DRIVER_NOT_RESPONDING, "GPU is unhealthy", times=2)
        assert program.stop(PROMPT_SECONDS * 2) == 0


def test_labels_stay_while_the_driver_hangs(rig: Rig, short_path: Path) -> None:
    path = short_path / "labels"
    argv = [str(BIN / "gpuslice"), "labels", "--mode=file", f"--output-file={path}"]
    argv += ["--sleep-interval=1s", "--no-timestamp"]
    with rig.run(argv, name="labels", env=QUICK) as program:
        eventually(path.exists, "the labels")
        before = path.read_text()
        rig.node.faults.hang()
        noticed(program)
        program.wait_for_code(Code.RECONCILE_FAILED)
        assert path.read_text() == before
        rig.node.faults.hang(hangs=False)
        program.wait_for_code(Code.RECOVERED)
        assert path.read_text() == before
        rig.node.faults.hang()
        program.wait_for_code(Code.DRIVER_NOT_RESPONDING, "GPU is unhealthy", times=2)
        assert program.stop(PROMPT_SECONDS) == 0
