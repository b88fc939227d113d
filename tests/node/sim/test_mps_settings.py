"""Limits and visible devices: from the daemon to its servers and their clients."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsError

from .mps_rig import (
    GIB,
    MpsRig,
    eventually,
    make_rig,
    running_server,
)


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
        with pytest.raises(MpsError, match="Invalid device ordinal!"):
            daemon.command(f"set_device_pinned_mem_limit {server} 9 3G")
    assert client.wait() == 0


def test_a_restarted_daemon_has_the_default_settings(rig: MpsRig) -> None:
    daemon = rig.daemon()
    with daemon:
        daemon.command("set_default_active_thread_percentage 50")
        daemon.command("set_default_device_pinned_mem_limit 0 4G")
        assert rig.run("info", "--device", "0", daemon=daemon).device["limit_bytes"] == 4 * GIB
    with daemon:
        fresh = rig.run("info", "--device", "0", daemon=daemon).device
        assert (fresh["thread_percentage"], fresh["limit_bytes"]) == (100.0, None)


def test_the_environment_of_the_daemon_sets_the_first_defaults(rig: MpsRig) -> None:
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


def test_invalid_variables_of_the_daemon_are_logged_and_ignored(rig: MpsRig) -> None:
    env = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "most", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "2G"}
    with rig.daemon(env=env) as daemon:
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        log = (daemon.log_directory / "control.log").read_text()
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]" in log
        assert "'2G' is not of the form device=limit" in log


@pytest.mark.parametrize(
    ("driver", "applied"), [(535, None), (555, None), (570, 3 * GIB), (590, 3 * GIB)]
)
def test_branches_before_560_do_not_apply_limits_by_uuid(
    short_path: Path, driver: int, applied: int | None
) -> None:
    rig = make_rig(short_path, driver=driver)
    with rig.daemon() as daemon:
        daemon.command(f"set_default_device_pinned_mem_limit {rig.uuids[0]} 3G")
        daemon.command("set_default_device_pinned_mem_limit 1 2G")
        devices = rig.run("info", daemon=daemon).report["devices"]
        assert [device["limit_bytes"] for device in devices] == [applied, 2 * GIB]
        # The same for the variable of a client.
        daemon.command("set_default_device_pinned_mem_limit 0 0")
        env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{rig.uuids[1]}=1G"}
        device = rig.run("info", "--device", "1", daemon=daemon, env=env).device
        assert device["limit_bytes"] == (GIB if applied else 2 * GIB)


def test_if_two_names_of_a_gpu_have_a_limit_the_last_one_set_applies(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 3G")
        daemon.command(f"set_default_device_pinned_mem_limit {rig.uuids[0]} 2G")
        daemon.command("set_default_device_pinned_mem_limit 7 1G")
        assert rig.run("info", "--device", "0", daemon=daemon).device["limit_bytes"] == 2 * GIB


def test_cuda_visible_devices_of_the_daemon_restricts_and_renumbers(rig: MpsRig) -> None:
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


def test_ordinals_in_the_daemon_and_in_the_client_do_not_combine(rig: MpsRig) -> None:
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": "1"}) as daemon:
        broken = rig.run("info", daemon=daemon, env={"CUDA_VISIBLE_DEVICES": "1"})
        assert broken.error == "CUDA_ERROR_NO_DEVICE"
        right = rig.run("info", daemon=daemon, env={"CUDA_VISIBLE_DEVICES": rig.uuids[1]})
        assert right.device["uuid"] == rig.uuids[1]


def test_limits_by_ordinal_use_the_numbering_of_the_daemon(rig: MpsRig) -> None:
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": rig.uuids[1]}) as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 2G")
        device = rig.run("info", daemon=daemon).device
        assert (device["uuid"], device["limit_bytes"]) == (rig.uuids[1], 2 * GIB)
