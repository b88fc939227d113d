"""The life of MPS servers: when they start, whom they serve, how they end."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon, MpsError, is_running, wait_until_gone
from gpuslice_sim.mps.simcuda import HeldClient

from .mps_rig import (
    CONTEXT,
    GIB,
    SERVER,
    MpsRig,
    descriptors,
    eventually,
    make_rig,
    needs_root,
    status_field,
)

ALICE, BOB = 4711, 4712


@pytest.fixture
def rig(short_path: Path) -> MpsRig:
    return make_rig(short_path)


def waits_in_line(client: HeldClient, daemon: MpsDaemon) -> bool:
    log = (daemon.log_directory / "control.log").read_text()
    return re.search(rf"NEW CLIENT {client.pid} from user \d+: pending$", log, re.M) is not None


def running_server(daemon: MpsDaemon) -> int:
    pid = daemon.server_pid()
    assert pid is not None
    return pid


def test_the_first_client_starts_a_server_that_stays_when_it_leaves(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        assert daemon.server_pid() is None
        first = rig.run("info", daemon=daemon)
        assert first.report["server_pid"] == running_server(daemon)
        assert daemon.command(f"get_server_status {running_server(daemon)}") == "ACTIVE"
        second = rig.run("info", daemon=daemon)
        assert second.report["server_pid"] == first.report["server_pid"]


def test_a_server_that_still_starts_is_initializing_and_its_clients_wait(rig: MpsRig) -> None:
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


def test_a_daemon_can_quit_while_its_server_starts(rig: MpsRig) -> None:
    rig.node.set({"mps.hold_init": 1})
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        eventually(lambda: daemon.server_pid())
        assert daemon.run("quit").returncode == 0
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_CONNECTION_FAILED"


def test_a_server_killed_while_it_starts_takes_its_waiting_clients_along(rig: MpsRig) -> None:
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


def test_a_server_copies_the_defaults_when_it_starts(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("set_default_active_thread_percentage 50")
        daemon.command("set_default_device_pinned_mem_limit 0 4G")
        with rig.hold(daemon=daemon) as client:
            [device] = client.ready()["devices"]
            assert (device["thread_percentage"], device["limit_bytes"]) == (50.0, 4 * GIB)
            daemon.command("set_default_active_thread_percentage 25")
            daemon.command("set_default_device_pinned_mem_limit 0 2G")
            later = rig.run("info", "--device", "0", daemon=daemon).device
            assert (later["thread_percentage"], later["limit_bytes"]) == (50.0, 4 * GIB)
        os.kill(running_server(daemon), signal.SIGKILL)
        eventually(lambda: daemon.server_pid() is None)
        next_server = rig.run("info", "--device", "0", daemon=daemon).device
        assert (next_server["thread_percentage"], next_server["limit_bytes"]) == (25.0, 2 * GIB)


def test_settings_of_a_running_server_reach_new_clients_only(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        client.ready()
        server = running_server(daemon)
        daemon.command("set_default_device_pinned_mem_limit 0 1G")
        assert daemon.command(f"set_active_thread_percentage {server} 30") == "30.0"
        daemon.command(f"set_device_pinned_mem_limit {server} {rig.uuids[0]} 3G")
        assert daemon.command(f"get_active_thread_percentage {server}") == "30.0"
        assert daemon.command(f"get_device_pinned_mem_limit {server} 0") == "3G"
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        new = rig.run("info", "--device", "0", daemon=daemon).device
        assert (new["sms"], new["limit_bytes"]) == (12, 3 * GIB)  # 30 % of 40 SMs
        with pytest.raises(MpsError, match="has no device '9'"):
            daemon.command(f"set_device_pinned_mem_limit {server} 9 3G")
    assert client.wait() == 0


def test_a_restarted_daemon_has_forgotten_its_settings(rig: MpsRig) -> None:
    daemon = rig.daemon()
    with daemon:
        daemon.command("set_default_active_thread_percentage 50")
        daemon.command("set_default_device_pinned_mem_limit 0 4G")
        assert rig.run("info", "--device", "0", daemon=daemon).device["limit_bytes"] == 4 * GIB
    with daemon:
        fresh = rig.run("info", "--device", "0", daemon=daemon).device
        assert (fresh["thread_percentage"], fresh["limit_bytes"]) == (100.0, None)


def test_the_daemons_environment_gives_the_first_defaults(rig: MpsRig) -> None:
    env = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0=2G,{rig.uuids[1]}=512MB",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    with rig.daemon(env=env) as daemon:
        assert daemon.command("get_default_active_thread_percentage") == "40.0"
        assert daemon.command("get_default_client_priority") == "1"
        seen = rig.run("info", daemon=daemon).report
        assert [device["limit_bytes"] for device in seen["devices"]] == [2 * GIB, GIB // 2]
        assert seen["priority"] == 1


def test_an_unreadable_environment_of_the_daemon_is_logged_and_ignored(rig: MpsRig) -> None:
    env = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "most", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "2G"}
    with rig.daemon(env=env) as daemon:
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        log = (daemon.log_directory / "control.log").read_text()
        assert "'most' is not a number from 1 to 100" in log
        assert "'2G' is not of the form device=limit" in log


@pytest.mark.parametrize(("driver", "applied"), [(535, None), (570, 3 * GIB), (590, 3 * GIB)])
def test_branch_535_does_not_apply_limits_by_uuid(
    short_path: Path, driver: int, applied: int | None
) -> None:
    rig = make_rig(short_path, driver=driver)
    with rig.daemon() as daemon:
        daemon.command(f"set_default_device_pinned_mem_limit {rig.uuids[0]} 3G")
        daemon.command("set_default_device_pinned_mem_limit 1 2G")
        devices = rig.run("info", daemon=daemon).report["devices"]
        assert [device["limit_bytes"] for device in devices] == [applied, 2 * GIB]


def test_of_two_names_for_one_gpu_the_last_one_set_wins(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 3G")
        daemon.command(f"set_default_device_pinned_mem_limit {rig.uuids[0]} 2G")
        daemon.command("set_default_device_pinned_mem_limit 7 1G")
        assert rig.run("info", "--device", "0", daemon=daemon).device["limit_bytes"] == 2 * GIB


def test_the_daemons_visible_devices_restrict_and_renumber(rig: MpsRig) -> None:
    first, second = rig.uuids
    for visible, seen in (
        (second, [second]),
        (second[:12], [second]),
        ("1,0", [second, first]),
        ("1", [second]),
        ("0,9,1", [first]),
    ):
        with rig.daemon(env={"CUDA_VISIBLE_DEVICES": visible}) as daemon:
            devices = rig.run("info", daemon=daemon).report["devices"]
            assert [device["uuid"] for device in devices] == seen, visible
            assert daemon.command("device_query --csv").count("GPU-") == len(seen)


def test_ordinals_on_both_sides_break(rig: MpsRig) -> None:
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": "1"}) as daemon:
        broken = rig.run("info", daemon=daemon, env={"CUDA_VISIBLE_DEVICES": "1"})
        assert broken.error == "CUDA_ERROR_NO_DEVICE"
        right = rig.run("info", daemon=daemon, env={"CUDA_VISIBLE_DEVICES": rig.uuids[1]})
        assert right.device["uuid"] == rig.uuids[1]


def test_limits_by_ordinal_follow_the_daemons_numbering(rig: MpsRig) -> None:
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": rig.uuids[1]}) as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 2G")
        device = rig.run("info", daemon=daemon).device
        assert (device["uuid"], device["limit_bytes"]) == (rig.uuids[1], 2 * GIB)


def test_a_daemon_without_a_visible_gpu_fails_its_clients(rig: MpsRig) -> None:
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": "GPU-not-here"}) as daemon:
        assert rig.run("info", daemon=daemon).error == "CUDA_ERROR_NO_DEVICE"
        eventually(lambda: daemon.server_pid() is None)
        assert rig.run("info", daemon=daemon).status == 2


@needs_root
def test_a_client_of_another_user_waits_until_the_server_is_idle(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon:
        with rig.hold(daemon=daemon, user=ALICE) as alice:
            first = alice.ready()["server_pid"]
            assert status_field(first, "Uid").split()[0] == str(ALICE)
            bob = rig.hold(daemon=daemon, user=BOB)
            eventually(lambda: waits_in_line(bob, daemon))
            with pytest.raises(TimeoutError):
                bob.next_report(timeout=0.3)
        second = bob.ready()["server_pid"]
        assert second != first
        assert not is_running(first)
        assert status_field(second, "Uid").split()[0] == str(BOB)
        assert bob.stop() == 0


@needs_root
def test_clients_of_one_user_do_not_overtake_a_waiting_one_of_another(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon:
        alice = rig.hold(daemon=daemon, user=ALICE)
        alice.ready()
        bob = rig.hold(daemon=daemon, user=BOB)
        eventually(lambda: waits_in_line(bob, daemon))
        late = rig.hold(daemon=daemon, user=ALICE)
        eventually(lambda: waits_in_line(late, daemon))
        for client in (bob, late):
            with pytest.raises(TimeoutError):
                client.next_report(timeout=0.2)
        alice.stop()
        bob.ready()
        bob.stop()
        late.ready()
        late.stop()


@needs_root
def test_a_client_that_gives_up_waiting_leaves_the_line(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon, rig.hold(daemon=daemon, user=ALICE) as alice:
        server = alice.ready()["server_pid"]
        bob = rig.hold(daemon=daemon, user=BOB)
        eventually(lambda: waits_in_line(bob, daemon))
        with pytest.raises(TimeoutError):
            bob.next_report(timeout=0.2)
        bob.kill()
        bob.stop()
        same = rig.run("info", daemon=daemon, user=ALICE)
        assert same.report["server_pid"] == server


@needs_root
def test_a_multi_user_server_serves_all_users_at_once(rig: MpsRig) -> None:
    rig.open_to_all()
    with (
        rig.daemon(multiuser=True) as daemon,
        rig.hold(daemon=daemon, user=ALICE) as alice,
        rig.hold(daemon=daemon, user=BOB) as bob,
        rig.hold(daemon=daemon) as root,
    ):
        servers = {client.ready()["server_pid"] for client in (alice, bob, root)}
        assert len(servers) == 1
        assert status_field(servers.pop(), "Uid").split()[0] == "0"
    assert [client.wait() for client in (alice, bob, root)] == [0, 0, 0]


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


def test_a_server_that_hangs_does_not_confuse_the_daemon(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        client.ready()
        server = running_server(daemon)
        os.kill(server, signal.SIGSTOP)
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(daemon.command, f"get_client_list {server}")
            os.kill(server, signal.SIGCONT)
            assert answer.result() == str(client.pid)


def test_clients_of_a_killed_daemon_fail_too(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    with rig.hold(daemon=daemon) as client:
        client.ready()
        daemon.kill()
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
    eventually(lambda: rig.node.state.processes() == [])


def test_after_the_daemons_death_new_clients_run_without_limits(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("set_default_device_pinned_mem_limit 0 1G")
    daemon.kill()
    stray = rig.run("info", "--device", "0", daemon=daemon)
    assert stray.status == 0
    assert (stray.report["mps"], stray.device["limit_bytes"]) == (False, None)


def test_a_fault_hits_all_clients_of_the_gpu_and_the_server_recovers(rig: MpsRig) -> None:
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


def test_a_client_on_two_gpus_carries_a_fault_from_one_to_the_other(rig: MpsRig) -> None:
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


def test_a_terminated_client_learns_it_at_its_next_call(rig: MpsRig) -> None:
    with (
        rig.daemon() as daemon,
        rig.hold("--alloc", "1GiB", "--linger", daemon=daemon) as client,
        rig.hold(daemon=daemon) as other,
    ):
        client.ready()
        other.ready()
        server = running_server(daemon)
        assert rig.used_by(client.pid) == {rig.uuids[0]: GIB + CONTEXT}
        assert daemon.run(f"terminate_client {server} {client.pid}").stdout == "0\n"
        assert rig.used_by(client.pid) == {}
        assert client.next_report()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
        assert rig.used_by(other.pid) == {rig.uuids[0]: CONTEXT}
        done = daemon.run(f"terminate_client {server} 1")
        assert done.returncode == 1
        assert "has no client 1" in done.stdout
    assert other.wait() == 0


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
        assert len(daemon.command(f"ps -p {one.pid}").splitlines()) == 2


def test_nvml_shows_the_server_as_compute_and_clients_as_mps_processes(
    rig: MpsRig,
) -> None:
    with rig.daemon() as daemon, rig.hold("--alloc", "1GiB", daemon=daemon) as client:
        client.ready()
        listing = rig.nvml_processes()
        assert listing["compute"][str(running_server(daemon))] == SERVER
        assert listing["mps"] == {str(client.pid): GIB + CONTEXT}


def test_a_killed_client_gives_everything_back(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold("--alloc", "2GiB", daemon=daemon) as client:
        client.ready()
        client.kill()
        eventually(lambda: rig.used_by(client.pid) == {})
        eventually(lambda: daemon.command(f"get_client_list {running_server(daemon)}") == "")


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


def test_a_server_does_not_start_on_a_gpu_somebody_else_holds_exclusively(rig: MpsRig) -> None:
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


def test_a_lost_gpu_fails_its_clients(rig: MpsRig) -> None:
    with rig.daemon() as daemon, rig.hold(daemon=daemon) as client:
        client.ready()
        rig.node.set({"gpu.0.lost": 1})
        assert client.next_report()["error"] == "CUDA_ERROR_DEVICE_UNAVAILABLE"
        assert rig.run("info", "--device", "0", daemon=daemon).status == 2
        assert rig.run("info", "--device", "1", daemon=daemon).status == 0


def test_older_gpus_beside_volta_are_dropped(rig: MpsRig) -> None:
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


def test_static_partitions_give_fixed_multiprocessors(short_path: Path) -> None:
    rig = make_rig(short_path, "a100-40x8", driver=590)
    uuid = rig.uuids[0]
    with rig.daemon(static_partitioning=True) as daemon:
        name = daemon.command(f"sm_partition add {uuid} 7")
        assert name.startswith(f"{uuid}/")
        bare = rig.run("info", "--device", "0", daemon=daemon)
        assert bare.error == "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        with rig.hold(
            daemon=daemon,
            env={"CUDA_MPS_SM_PARTITION": name, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"},
        ) as client:
            [device] = client.ready()["devices"]
            assert device["sms"] == 28  # chunks of 4
            gpu, partition = (row.split() for row in daemon.command("lspart").splitlines()[1:3])
            assert gpu[2:6] == ["20", "7", "80", "28"]
            assert partition[1] == name.split("/")[1]
            assert partition[-1] == "Yes"
            with pytest.raises(MpsError, match="still has clients"):
                daemon.command(f"sm_partition rm {uuid} {partition[1]}")
        eventually(lambda: "Yes" not in daemon.command("lspart"))
        with pytest.raises(MpsError, match="21 chunks do not fit"):
            daemon.command(f"sm_partition add {uuid} 21")
        daemon.command(f"sm_partition rm {uuid} {partition[1]}")
        daemon.command(f"sm_partition add {uuid} 27")


def test_partitions_need_a_daemon_that_was_started_for_them(short_path: Path) -> None:
    rig = make_rig(short_path, "a100-40x8", driver=615)
    with rig.daemon() as daemon:
        with pytest.raises(MpsError, match="requires a daemon with --static-partitioning"):
            daemon.command(f"sm_partition add {rig.uuids[0]} 2")
        told = rig.run(
            "info", "--device", "0", daemon=daemon, env={"CUDA_MPS_SM_PARTITION": "GPU-1/2"}
        )
        assert told.device["sms"] == 108
        assert "CUDA_MPS_SM_PARTITION ignored" in told.report["warnings"][0]


def test_partitions_need_ampere(short_path: Path) -> None:
    rig = make_rig(short_path, driver=590)
    with (
        rig.daemon(static_partitioning=True) as daemon,
        pytest.raises(MpsError, match="require an Ampere or newer GPU"),
    ):
        daemon.command(f"sm_partition add {rig.uuids[0]} 2")
