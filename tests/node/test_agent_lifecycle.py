"""Start, restart, reload, stop: with real processes and signals."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from gpuslice.codes import Code
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import remove_directory

from .conftest import MakeRig
from .rig import RESOURCE, Rig
from .test_node_config import eventually


def settle(agent: BackgroundProcess) -> tuple[list[str], int]:
    """Descriptors and threads, when their number is stable."""
    before = (agent.descriptors(), agent.threads())
    while True:
        time.sleep(0.3)
        now = (agent.descriptors(), agent.threads())
        if [len(before[0]), before[1]] == [len(now[0]), now[1]]:
            return now
        before = now


def test_fifty_kubelet_restarts_leave_nothing_behind(rig: Rig) -> None:
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.restart()
        rig.kubelet.wait_for(RESOURCE)
        descriptors, threads = settle(agent)
        for _ in range(50):
            rig.kubelet.restart()
            rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        # A leak stays; a descriptor that is being closed does not. A busy gRPC starts more threads.
        eventually(
            lambda: len(agent.descriptors()) <= len(descriptors) + 1,
            f"no more descriptors than before: {descriptors}",
        )
        eventually(lambda: agent.threads() <= threads + 10, f"about as many threads as {threads}")
        assert sorted(p.name for p in rig.kubelet.directory.iterdir()) == [
            "aliyungpushare.sock",
            "kubelet.sock",
        ]


def test_the_agent_registers_with_a_kubelet_that_comes_back_later(rig: Rig) -> None:
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.stop()
        time.sleep(1.0)
        rig.kubelet.start()
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30


def test_the_agent_may_start_before_the_kubelet(rig: Rig) -> None:
    rig.kubelet.stop()
    shutil.rmtree(rig.kubelet.directory)
    with rig.agent() as agent:
        agent.wait_for_code(Code.WAITING_FOR_KUBELET)
        rig.kubelet.start()
        rig.kubelet.wait_for(RESOURCE)


def test_a_deleted_socket_is_created_and_registered_again(rig: Rig) -> None:
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        rig.socket.unlink()
        rig.kubelet.wait_until(lambda: rig.kubelet.registrations == 2, "a second registration")
        rig.kubelet.wait_for(RESOURCE)
        assert rig.admit(2)


def test_an_ended_stream_leads_to_a_new_registration(rig: Rig) -> None:
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE).channel.close()
        rig.kubelet.wait_until(lambda: rig.kubelet.registrations == 2, "a second registration")
        rig.kubelet.wait_for(RESOURCE)
        assert agent.logged(Code.PLUGIN_SERVER_RESTARTING, "the kubelet ended the device stream")


def test_a_stream_of_another_client_that_ends_changes_nothing(rig: Rig) -> None:
    with rig.agent() as agent:
        endpoint = rig.kubelet.wait_for(RESOURCE)
        rpc: Any = endpoint.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")
        stream = rpc(b"")
        assert next(stream)
        stream.cancel()
        time.sleep(1.0)
        assert rig.kubelet.registrations == 1
        assert agent.logged(Code.PLUGIN_SERVER_RESTARTING) == 0


def test_an_agent_that_stops_ends_the_stream_without_an_error(rig: Rig) -> None:
    with rig.agent() as agent:
        endpoint = rig.kubelet.wait_for(RESOURCE)
        assert agent.stop() == 0
        rig.kubelet.wait_until(lambda: not endpoint.connected, "the stream to end")
        assert endpoint.error == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_removes_the_socket_and_exits_0(rig: Rig, number: signal.Signals) -> None:
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        agent.send(number)
        assert agent.wait() == 0
        assert not rig.socket.exists()
        assert "Traceback" not in agent.output()


def test_after_kill_9_the_next_agent_takes_over_and_no_process_remains(rig: Rig) -> None:
    with rig.agent(name="first") as first:
        rig.kubelet.wait_for(RESOURCE)
        children = children_of(first.pid)
        first.kill()
        assert children == []
        assert rig.socket.exists()
    with rig.agent(name="second"):
        rig.kubelet.wait_until(lambda: rig.kubelet.registrations == 2, "a second registration")
        rig.kubelet.wait_for(RESOURCE)
        assert rig.admit(4)


def children_of(pid: int) -> list[str]:
    """Not every kernel lists the children of a process in a file."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(stat.parent.name)
    return found


def test_a_second_agent_for_the_same_resource_exits(rig: Rig) -> None:
    with rig.agent(name="first"):
        rig.kubelet.wait_for(RESOURCE)
        with rig.agent(name="second") as second:
            assert second.wait() == 1
            assert "another process serves aliyun.com/gpu-mem on" in second.output()
            assert "stop it first" in second.output()
        assert rig.kubelet.allocatable(RESOURCE) == 30
        assert rig.admit(1)


def test_agents_for_different_resources_run_on_one_node(rig: Rig) -> None:
    with rig.agent(name="first"), rig.agent("--resource", "example.com/gpu-mem", name="second"):
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.wait_for("example.com/gpu-mem")


def test_one_of_two_agents_started_at_once_serves(rig: Rig) -> None:
    with rig.agent(name="a") as a, rig.agent(name="b") as b:
        rig.kubelet.wait_for(RESOURCE)
        deadline = time.monotonic() + 20
        while a.returncode is None and b.returncode is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sorted([a.returncode, b.returncode], key=str) == [1, None]
        assert rig.admit(1)


def test_sigquit_prints_every_task_and_thread_and_the_agent_continues(rig: Rig) -> None:
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        agent.send(signal.SIGQUIT)
        output = agent.wait_for_output("== end of stacks")
        assert "_stay_registered" in output
        assert "gpu-health" in output or "in wait" in output
        assert rig.admit(1)


def test_sighup_reads_the_settings_again(rig: Rig, short_path: Path) -> None:
    config = short_path / "config.yaml"
    config.write_text("sharing: {memory: {unit: GiB}}")
    with rig.agent("--config-file", str(config)) as agent:
        rig.kubelet.wait_for(RESOURCE)
        config.write_text("sharing: {memory: {unit: 512MiB}}")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: rig.kubelet.capacity(RESOURCE) == 60, "60 units")
        assert rig.kubelet.registrations == 1


def test_a_broken_file_at_sighup_leaves_the_last_good_settings_in_force(
    rig: Rig, short_path: Path
) -> None:
    config = short_path / "config.yaml"
    config.write_text("sharing: {memory: {unit: GiB}}")
    with rig.agent("--config-file", str(config)) as agent:
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
    with rig.agent("--config-file", str(config), "--kubelet-socket", socket) as agent:
        rig.kubelet.wait_for(RESOURCE)
        config.write_bytes(broken)
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.CONFIGURATION_INVALID)
        agent.wait_for_code(Code.RECONCILED)
        assert rig.kubelet.allocatable(RESOURCE) == 30
        assert "Traceback" not in agent.output()


def test_if_no_gpu_is_large_enough_for_a_unit_any_more_the_agent_waits_for_one(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("mixed")
    large = [gpu for gpu in rig.node.gpus() if gpu.memory_total_bytes > 32 << 30]
    with rig.agent("--memory-unit", "32GiB") as agent:
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


def test_sighup_finds_a_gpu_that_was_added(rig: Rig) -> None:
    gone = rig.node.gpus()[1].uuid
    rig.node.faults.unplug(gone)
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 15
        rig.node.faults.plug(gone)
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: rig.healthy_units(gone) == 15, "the second GPU")
        assert rig.kubelet.registrations == 1


def test_a_driver_that_fails_at_sighup_makes_all_devices_unhealthy_until_it_works_again(
    rig: Rig,
) -> None:
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 0, "all unhealthy")
        rig.node.faults.nvml_init(None)
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 30, "recovery")


def without_driver(node: SimNode) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(node.directory / "nothing")}


def test_without_a_driver_the_agent_exits_with_a_reason(rig: Rig) -> None:
    with rig.agent(env=without_driver(rig.node)) as agent:
        assert agent.wait() == 1
        assert "the NVIDIA driver cannot be used" in agent.output()
        assert "Traceback" not in agent.output()


def test_without_a_driver_it_waits_if_the_settings_say_so_and_can_be_stopped(rig: Rig) -> None:
    with rig.agent("--no-fail-on-init-error", env=without_driver(rig.node)) as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS)
        assert agent.stop() == 0


def test_a_driver_that_comes_up_later_is_found(rig: Rig) -> None:
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    with rig.agent("--no-fail-on-init-error") as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS, "Driver Not Loaded")
        rig.node.faults.nvml_init(None)
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for(RESOURCE)


def test_settings_that_change_while_the_agent_waits_for_gpus_are_applied(
    rig: Rig, short_path: Path
) -> None:
    config = short_path / "config.yaml"
    config.write_text("flags: {failOnInitError: false}")
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    with rig.agent("--config-file", str(config)) as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS)
        config.write_text("sharing: {memory: {unit: 512MiB}}\nflags: {failOnInitError: false}")
        rig.node.faults.nvml_init(None)
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 60


def test_the_error_of_a_node_without_gpus_differs_from_that_of_a_node_without_a_driver(
    rig: Rig,
) -> None:
    for gpu in rig.node.gpus():
        rig.node.faults.unplug(gpu.uuid)
    with rig.agent() as agent:
        assert agent.wait() == 1
        assert "this node has no GPU to advertise (NVML finds none)" in agent.output()


@pytest.mark.parametrize(
    ("flag", "value", "because"),
    [
        ("--memory-unit", "6GB", "memory-unit: '6GB' is not valid"),
        ("--mps-pipe", "relative", "mps-pipe: 'relative' is not valid"),
        ("--config-file", "/nowhere.yaml", "config-file: '/nowhere.yaml' is not valid"),
    ],
)
def test_an_invalid_flag_ends_the_agent_with_a_message(
    rig: Rig, flag: str, value: str, because: str
) -> None:
    with rig.agent(flag, value) as agent:
        assert agent.wait() == 1
        assert because in agent.output()
        assert "Traceback" not in agent.output()


def test_a_socket_directory_with_too_long_a_name_is_rejected(make_rig: MakeRig) -> None:
    rig = make_rig()
    deep = rig.directory / ("x" * 90) / "kubelet.sock"
    with rig.agent("--kubelet-socket", str(deep)) as agent:
        assert agent.wait() == 1
        assert "bytes, and 107 is the maximum" in agent.output()


def test_a_socket_that_cannot_be_created_ends_the_agent_with_a_reason(rig: Rig) -> None:
    rig.socket.mkdir()
    with rig.agent() as agent:
        assert agent.wait() == 1
        assert f"the socket {rig.socket} cannot be created" in agent.output()
        assert "Traceback" not in agent.output()


def test_a_directory_that_is_removed_during_the_start_is_waited_for(rig: Rig) -> None:
    # A socket that accepts and never answers: the agent waits two seconds for an answer.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(rig.socket))
        silent.listen()
        silent.settimeout(90)
        with rig.agent("--no-health-checks") as agent:
            connection, _ = silent.accept()
            agent.send(signal.SIGSTOP)  # removing the directory takes an unknown time
            rig.kubelet.stop()
            remove_directory(rig.kubelet.directory)
            agent.send(signal.SIGCONT)
            connection.close()
            agent.wait_for_code(Code.PLUGIN_SERVER_RESTARTING, "directory was removed")
            rig.kubelet.start()
            rig.kubelet.wait_for(RESOURCE)


def test_the_agent_registers_after_a_simulated_reboot(rig: Rig) -> None:
    """The whole directory is removed, like a tmpfs, and the kubelet creates it again."""
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.stop()
        remove_directory(rig.kubelet.directory)  # the agent may be creating its socket there
        rig.kubelet.start()
        rig.kubelet.wait_for(RESOURCE)


def test_sighup_does_not_end_an_agent_that_is_starting(rig: Rig) -> None:
    with rig.agent() as agent:
        handled = f"/proc/{agent.pid}/status"
        eventually(lambda: _ignores_or_catches(handled, signal.SIGHUP), "SIGHUP is no longer fatal")
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for(RESOURCE)


def _ignores_or_catches(status: str, number: int) -> bool:
    masks = re.findall(r"^Sig(?:Ign|Cgt):\s+([0-9a-f]+)$", Path(status).read_text(), re.M)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
