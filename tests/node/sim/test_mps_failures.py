"""Servers, daemons, clients and GPUs that fail."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuslice_sim.mps.launch import wait_until_gone

from .mps_rig import (
    CONTEXT,
    GIB,
    MpsRig,
    eventually,
    running_server,
)


def test_clients_of_a_killed_server_fail_and_the_next_one_gets_a_new_server(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold("--alloc", "1GiB", daemon=daemon) as client:
        client.ready()
        server = running_server(daemon)
        os.kill(server, signal.SIGKILL)
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
        assert client.wait() == 2
        fresh = rig.run("info", daemon=daemon).report
        assert fresh["server_pid"] != server
        assert {process.pid for process in rig.node.state.processes()} == {fresh["server_pid"]}


def test_the_daemon_answers_while_its_server_hangs(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        client.ready()
        server = running_server(daemon)
        os.kill(server, signal.SIGSTOP)
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(daemon.command, f"get_client_list {server}")
            os.kill(server, signal.SIGCONT)
            assert answer.result() == str(client.pid)


def test_clients_of_a_killed_daemon_fail(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    with rig.hold(daemon=daemon) as client:
        client.ready()
        daemon.kill()
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
    eventually(lambda: rig.node.state.processes() == [])


def test_after_the_daemon_was_killed_new_clients_run_without_limits(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("set_default_device_pinned_mem_limit 0 1G")
    daemon.kill()
    stray = rig.run("info", "--device", "0", daemon=daemon)
    assert stray.status == 0
    assert (stray.report["mps"], stray.device["limit_bytes"]) == (False, None)


def test_a_fault_ends_all_clients_of_the_gpu_and_the_server_recovers(rig: MpsRig) -> None:
    with (
        rig.daemon() as daemon,
        rig.hold("--linger", daemon=daemon) as neighbour,
        rig.hold("--device", "1", daemon=daemon) as elsewhere,
    ):
        neighbour.ready()
        elsewhere.ready()
        server = running_server(daemon)
        culprit = rig.run("fault", daemon=daemon)
        assert (culprit.status, culprit.error) == (2, "CUDA_ERROR_LAUNCH_FAILED")
        assert neighbour.next_report()["error"] == "CUDA_ERROR_LAUNCH_FAILED"
        assert daemon.command(f"get_server_status {server}") == "FAULT"
        assert rig.run("info", daemon=daemon).error == "CUDA_ERROR_MPS_SERVER_NOT_READY"
        with pytest.raises(TimeoutError):
            elsewhere.next_report(timeout=0.2)
        neighbour.stop()
        eventually(lambda: daemon.command(f"get_server_status {server}") == "ACTIVE")
        assert rig.run("info", daemon=daemon).report["server_pid"] == server
    assert elsewhere.wait() == 0


def test_a_client_on_two_gpus_spreads_a_fault_from_one_to_the_other(rig: MpsRig) -> None:
    with (
        rig.daemon() as daemon,
        rig.hold("--device", "0,1", daemon=daemon) as bridge,
        rig.hold("--device", "1", daemon=daemon) as elsewhere,
    ):
        bridge.ready()
        elsewhere.ready()
        daemon.inject_fault(rig.uuids[0])
        assert bridge.next_report()["error"] == "CUDA_ERROR_LAUNCH_FAILED"
        assert elsewhere.next_report()["error"] == "CUDA_ERROR_LAUNCH_FAILED"


def test_before_volta_a_fault_ends_the_server(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.cc": "6.1", "gpu.1.cc": "6.1"})
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        client.ready()
        server = running_server(daemon)
        daemon.inject_fault(rig.uuids[0])
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
        wait_until_gone(server)


def test_a_terminated_client_gets_an_error_at_its_next_call(rig: MpsRig) -> None:
    with (
        rig.daemon() as daemon,
        rig.hold("--alloc", "1GiB", "--linger", daemon=daemon) as client,
        rig.hold(daemon=daemon) as other,
    ):
        client.ready()
        other.ready()
        server = running_server(daemon)
        assert rig.used_by(client.pid) == {rig.uuids[0]: GIB + CONTEXT}
        assert daemon.run(stdin=f"terminate_client {server} {client.pid}\n").stdout == "0\n"
        assert rig.used_by(client.pid) == {}
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
        assert rig.used_by(other.pid) == {rig.uuids[0]: CONTEXT}
        done = daemon.run(stdin=f"terminate_client {server} 1\n")
        assert done.stdout == "Invalid process 1!\n1\n"
    assert other.wait() == 0


def test_the_memory_of_a_killed_client_is_freed(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold("--alloc", "2GiB", daemon=daemon) as client:
        client.ready()
        client.kill()
        eventually(lambda: rig.used_by(client.pid) == {})
        eventually(lambda: daemon.command(f"get_client_list {running_server(daemon)}") == "")


def test_a_lost_gpu_fails_its_clients(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        client.ready()
        rig.node.set({"gpu.0.lost": 1})
        assert client.next_report()["error"] == "CUDA_ERROR_DEVICE_UNAVAILABLE"
        assert rig.run("info", "--device", "0", daemon=daemon).status == 2
        assert rig.run("info", "--device", "1", daemon=daemon).status == 0
