"""MPS servers: when they start, which GPUs they use and what NVML shows of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import wait_until_gone

from .mps_rig import (
    CONTEXT,
    GIB,
    SERVER,
    MpsRig,
    descriptors,
    eventually,
    running_server,
)


def test_the_first_client_starts_a_server_that_stays_when_the_client_ends(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        assert daemon.server_pid() is None
        first = rig.run("info", daemon=daemon)
        assert first.report["server_pid"] == running_server(daemon)
        assert daemon.command(f"get_server_status {running_server(daemon)}") == "ACTIVE"
        second = rig.run("info", daemon=daemon)
        assert second.report["server_pid"] == first.report["server_pid"]


def test_a_server_that_is_starting_is_initializing_and_its_clients_wait(rig: MpsRig) -> None:
    rig.node.set({"mps.hold_init": 1})
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        eventually(lambda: daemon.server_pid())
        server = running_server(daemon)
        assert daemon.command(f"get_server_status {server}") == "INITIALIZING"
        with pytest.raises(TimeoutError):
            client.next_report(timeout=0.1)
        rig.node.set({"mps.hold_init": 0})
        assert client.ready()["server_pid"] == server
        assert daemon.command(f"get_server_status {server}") == "ACTIVE"


def test_a_daemon_can_quit_while_its_server_is_starting(rig: MpsRig) -> None:
    rig.node.set({"mps.hold_init": 1})
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        eventually(lambda: daemon.server_pid())
        assert daemon.run(stdin="quit -t 0\n").returncode == 0
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_CONNECTION_FAILED"


def test_clients_that_wait_for_a_starting_server_fail_when_it_is_killed(rig: MpsRig) -> None:
    rig.node.set({"mps.hold_init": 1})
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        eventually(lambda: daemon.server_pid())
        os.kill(running_server(daemon), signal.SIGKILL)
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        rig.node.set({"mps.hold_init": 0})
        assert rig.run("info", daemon=daemon).status == 0


def test_ending_a_server_at_any_moment_does_not_end_the_daemon(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        for _ in range(20):
            daemon.command("start_server -uid 0")
            server = daemon.server_pid()
            if server is not None:
                os.kill(server, signal.SIGTERM)
                wait_until_gone(server)
        assert rig.run("info", daemon=daemon).status == 0


def test_a_daemon_without_a_visible_gpu_fails_its_clients(rig: MpsRig) -> None:
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": "GPU-not-here"}) as daemon:
        assert rig.run("info", daemon=daemon).error == "CUDA_ERROR_NO_DEVICE"
        eventually(lambda: daemon.server_pid() is None)
        assert rig.run("info", daemon=daemon).status == 2


def test_clients_are_listed_with_their_devices(rig: MpsRig) -> None:
    with (
        rig.daemon() as daemon,
        rig.hold("--device", "0,1", daemon=daemon) as both,
        rig.hold("--device", "1", daemon=daemon) as one,
    ):
        both.ready()
        one.ready()
        server = running_server(daemon)
        clients = daemon.command(f"get_client_list {server}").splitlines()
        assert sorted(map(int, clients)) == sorted([both.pid, one.pid])
        first, second = daemon.command(f"get_device_client_list {server}").splitlines()
        assert first == f"{rig.uuids[0]}: {both.pid}"
        assert second.startswith(f"{rig.uuids[1]}: ")
        assert {int(pid) for pid in second.split()[1:]} == {both.pid, one.pid}
        header, *rows = daemon.command("ps").splitlines()
        assert header.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        listed = sorted((int(pid), dev, int(ns)) for pid, _, _, dev, ns, _ in map(str.split, rows))
        short = [uuid[:22] for uuid in rig.uuids]
        assert listed == sorted(
            (pid, device, namespace)
            for pid, device in [(both.pid, short[0]), (both.pid, short[1]), (one.pid, short[1])]
        )
        assert len(daemon.command(f"ps -p {running_server(daemon)}").splitlines()) == 1 + 3


def test_nvml_shows_the_server_as_compute_and_clients_as_mps_processes(
    rig: MpsRig,
) -> None:
    with rig.daemon() as daemon, rig.hold("--alloc", "1GiB", daemon=daemon) as client:
        client.ready()
        listing = rig.nvml_processes()
        assert listing["compute"][str(running_server(daemon))] == SERVER
        assert listing["mps"] == {str(client.pid): GIB + CONTEXT}


def test_an_exclusive_gpu_belongs_to_the_server_and_all_its_clients(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.compute_mode": 3, "gpu.1.compute_mode": 3})
    with (
        rig.daemon() as daemon,
        rig.hold(daemon=daemon) as one,
        rig.hold(daemon=daemon) as two,
        rig.daemon("second") as second,
    ):
        one.ready()
        two.ready()
        for stray in (rig.run("info"), rig.run("info", daemon=second)):
            assert stray.error == "CUDA_ERROR_DEVICE_UNAVAILABLE"
            message = stray.report["message"]
            assert "all CUDA-capable devices are busy or unavailable" in message
            assert f"held by process {running_server(daemon)}" in message


def test_a_server_does_not_start_on_a_gpu_that_another_process_holds_exclusively(
    rig: MpsRig,
) -> None:
    rig.node.set({"gpu.0.compute_mode": 3})
    with rig.hold() as stray, rig.daemon() as daemon:
        assert stray.ready()["mps"] is False
        assert rig.run("info", daemon=daemon).error == "CUDA_ERROR_DEVICE_UNAVAILABLE"
        stray.stop()
        assert rig.run("info", daemon=daemon).status == 0


def test_a_server_does_not_start_on_a_prohibited_gpu(rig: MpsRig) -> None:
    rig.node.set({"gpu.1.compute_mode": 2})
    with rig.daemon() as daemon:
        refused = rig.run("info", daemon=daemon)
        assert refused.error == "CUDA_ERROR_DEVICE_UNAVAILABLE"
        assert f"{rig.uuids[1]} is PROHIBITED" in refused.report["message"]


def test_gpus_older_than_volta_are_skipped_if_the_node_has_newer_ones(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.cc": "6.1"})
    with rig.daemon() as daemon:
        assert rig.run("info", daemon=daemon).device["uuid"] == rig.uuids[1]


def test_many_clients_leave_nothing_behind(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        rig.run("info", daemon=daemon)
        server = running_server(daemon)
        eventually(lambda: not daemon.command(f"get_client_list {server}"))
        before = descriptors(daemon.pid) + descriptors(server)
        for number in range(20):
            if number % 2:
                rig.run("fill", daemon=daemon)
            else:
                with rig.hold(daemon=daemon) as client:
                    client.ready()
                    client.kill()
        eventually(lambda: descriptors(daemon.pid) + descriptors(server) <= before)
        eventually(lambda: {each.pid for each in rig.node.state.processes()} == {server})
