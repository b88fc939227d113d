"""Start, restart and stop: with real processes, sockets and signals."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet.endpoint import connect
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import remove_directory

from .rig import ALL, GPU, RESOURCE, Listener, Rig, eventually


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
    with rig.agent(ALL) as agent:
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
    with rig.agent(ALL):
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


def test_the_agent_registers_after_a_simulated_reboot(rig: Rig) -> None:
    """The whole directory is removed, like a tmpfs, and the kubelet creates it again."""
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.stop()
        remove_directory(rig.kubelet.directory)  # the agent may be creating its socket there
        rig.kubelet.start()
        rig.kubelet.wait_for(RESOURCE)


def test_the_agent_waits_for_a_directory_that_is_removed_during_its_start(rig: Rig) -> None:
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


def test_a_stream_of_another_client_does_not_keep_the_agent_from_registering_again(
    rig: Rig,
) -> None:
    with rig.agent() as agent:
        kubelet = rig.kubelet.wait_for(RESOURCE)
        # On a connection of its own, which outlives that of the kubelet.
        with Listener(connect(RESOURCE, rig.socket)) as other:
            kubelet.channel.close()
            rig.kubelet.wait_until(lambda: rig.kubelet.registrations == 2, "a new registration")
            assert other.lists
        assert agent.logged(Code.PLUGIN_SERVER_RESTARTING, "the kubelet ended the device stream")
        rig.kubelet.wait_for(RESOURCE)


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


def test_sockets_of_a_killed_agent_are_removed_and_those_of_others_stay(rig: Rig) -> None:
    with rig.agent() as killed:
        rig.kubelet.wait_for(RESOURCE)
        killed.kill()
    assert rig.socket.is_socket()
    stays = rig.kubelet.directory / "nvidia-served.sock"
    other = rig.kubelet.directory / "vendor.sock"
    with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as unrelated:
        served.bind(str(stays))
        served.listen()
        unrelated.bind(str(other))  # refuses connections, and is not ours
        with rig.plugin() as agent:  # another resource than before
            rig.kubelet.wait_for(GPU)
            agent.wait_for_code(Code.STALE_SOCKET_REMOVED, rig.socket.name)
            assert not rig.socket.exists()
            assert stays.is_socket()
            assert other.is_socket()


def test_a_second_agent_for_the_same_resource_exits(rig: Rig) -> None:
    with rig.agent(ALL, name="first"):
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
