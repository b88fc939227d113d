"""SIGHUP: the agent loads its settings and enumerates the GPUs again."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig, eventually


def test_sighup_reads_the_settings_again(rig: Rig, short_path: Path) -> None:
    config = short_path / "config.yaml"
    config.write_text("sharing: {memory: {unit: GiB}}")
    with rig.agent("--config-file", str(config)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        config.write_text("sharing: {memory: {unit: 512MiB}}")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: rig.kubelet.capacity(RESOURCE) == 60, "60 units")
        assert rig.kubelet.registrations == 1


def test_sighup_does_not_end_an_agent_that_is_starting(rig: Rig) -> None:
    with rig.agent() as agent:
        handled = f"/proc/{agent.pid}/status"
        eventually(lambda: _ignores_or_catches(handled, signal.SIGHUP), "SIGHUP is no longer fatal")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for(RESOURCE)


def _ignores_or_catches(status: str, number: int) -> bool:
    masks = re.findall(r"^Sig(?:Ign|Cgt):\s+([0-9a-f]+)$", Path(status).read_text(), re.M)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def test_a_broken_file_at_sighup_leaves_the_last_good_settings_in_force(
    rig: Rig, short_path: Path
) -> None:
    config = short_path / "config.yaml"
    config.write_text("sharing: {memory: {unit: GiB}}")
    with rig.agent(ALL, "--config-file", str(config)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        for number, broken in enumerate(("sharing: {memory: {untis: MiB}}", "sharing: ["), 1):
            config.write_text(broken)
            agent.send(signal.SIGHUP)
            agent.wait_for_code(Code.CONFIGURATION_INVALID, "config-file", times=number)
            assert rig.kubelet.allocatable(RESOURCE) == 30
        assert rig.admit(2)


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff\xfe\x00binary",
        b"a: 2001-99-99",
        b"[" * 3000,
        b"sharing: {memory: {resource: example.com/" + b"x" * 63 + b"}}",
        b"sharing: {memory: {unit: 64GiB}}",
        b"sharing: {memory: {mps: {check: true}}}",
    ],
)
def test_no_content_of_the_file_ends_an_agent_that_serves(
    rig: Rig, short_path: Path, broken: bytes
) -> None:
    config = short_path / "config.yaml"
    config.write_text("")
    deep = rig.directory / ("x" * 30)  # long enough that the longest resource name does not fit
    rig.kubelet.stop()
    rig.kubelet.directory = deep
    rig.kubelet.start()
    socket = str(deep / "kubelet.sock")
    with rig.agent(ALL, "--config-file", str(config), "--kubelet-socket", socket) as agent:
        rig.kubelet.wait_for(RESOURCE)
        config.write_bytes(broken)
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.CONFIGURATION_INVALID)
        agent.wait_for_code(Code.RECONCILED)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        assert "Traceback" not in agent.output()


def test_mps_settings_that_change_at_sighup_reach_the_next_container(
    rig: Rig, short_path: Path
) -> None:
    config = short_path / "config.yaml"
    config.write_text("")
    with rig.agent("--config-file", str(config)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert "CUDA_MPS_PIPE_DIRECTORY" not in rig.admit(1, "before").response.envs
        config.write_text(
            "sharing: {memory: {threads: none, mps: {pipeDirectory: /x, check: off}}}"
        )
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.RECONCILED)
        rig.wait_for_limits()
        envs = rig.admit(1, "after").response.envs
        assert envs["CUDA_MPS_PIPE_DIRECTORY"] == "/x"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in envs


def test_another_resource_name_at_sighup_is_registered_and_the_old_one_is_withdrawn(
    rig: Rig, short_path: Path
) -> None:
    config = short_path / "config.yaml"
    config.write_text("")
    with rig.agent("--config-file", str(config)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        config.write_text("sharing: {memory: {resource: example.com/gpu-mem}}")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for("example.com/gpu-mem")
        rig.kubelet.wait_until(
            lambda: rig.kubelet.allocatable(RESOURCE) == 0, "the end of the old resource"
        )
        assert not rig.socket.exists()


def test_a_stop_signal_does_not_wait_for_pending_reloads(rig: Rig) -> None:
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        for _ in range(60):
            agent.send(signal.SIGHUP)
            time.sleep(0.01)
        before = agent.logged(Code.RECONCILED)
        assert agent.stop() == 0
        assert agent.logged(Code.RECONCILED) - before < 5
        assert "Traceback" not in agent.output()


def test_sighup_finds_a_gpu_that_was_added(rig: Rig) -> None:
    gone = rig.node.gpus()[1].uuid
    rig.node.faults.unplug(gone)
    with rig.agent(ALL) as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 15
        rig.node.faults.plug(gone)
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: rig.healthy_units(gone) == 15, "the second GPU")
        assert rig.kubelet.registrations == 1


def test_a_driver_that_fails_at_sighup_makes_all_devices_unhealthy_until_it_works_again(
    rig: Rig,
) -> None:
    with rig.agent(ALL) as agent:
        rig.kubelet.wait_for(RESOURCE)
        rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 0, "all unhealthy")
        rig.node.faults.nvml_init(None)
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 30, "recovery")


def test_the_agent_waits_when_no_gpu_is_large_enough_for_one_unit_any_more(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("mixed")
    large = [gpu for gpu in rig.node.gpus() if gpu.memory_total_bytes > 32 << 30]
    with rig.agent(ALL, "--memory-unit", "32GiB") as agent:
        rig.kubelet.wait_for(RESOURCE)
        agent.wait_for_code(Code.GPU_SKIPPED, "smaller than one unit of 32GiB", times=2)
        for gpu in large:
            rig.node.faults.unplug(gpu.uuid)
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.RECONCILE_FAILED)
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 0, "all unhealthy")
        for gpu in large:
            rig.node.faults.plug(gpu.uuid)
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 2, "recovery")
