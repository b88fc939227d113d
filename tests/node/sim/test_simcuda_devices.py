"""Which GPUs a CUDA program finds on the node, with and without MPS."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mps_rig import CONTEXT, GIB, MIB, SERVER, MpsRig, eventually, make_rig

UNAVAILABLE = "CUDA_ERROR_DEVICE_UNAVAILABLE"


def seen(rig: MpsRig, **env: str) -> list[str]:
    return [device["uuid"] for device in rig.run("info", env=env).report["devices"]]


def test_without_a_daemon_it_runs_without_mps_and_limits_and_without_a_warning(rig: MpsRig) -> None:
    env = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
    }
    info = rig.run("info", "--device", "0", env=env)
    assert info.status == 0
    assert (info.report["mps"], info.report["server_pid"]) == (False, None)
    assert (info.device["sms"], info.device["limit_bytes"]) == (40, None)
    assert info.report["warnings"] == []


def test_without_mps_it_can_use_the_whole_gpu_and_is_listed(rig: MpsRig) -> None:
    gpu = rig.node.gpus()[0]
    room = gpu.memory_total_bytes - gpu.memory_reserved_bytes
    with rig.hold("--alloc", "2GiB") as client:
        client.ready()
        [process] = rig.node.state.processes()
        assert (process.pid, process.gpu, process.kind) == (client.pid, gpu.uuid, "C")
        assert process.used_bytes == 2 * GIB + CONTEXT
        assert process.name == str(rig.simcuda)
        filled = rig.run("fill")
        assert filled.report["total_bytes"] == room - 2 * GIB - CONTEXT
    assert rig.node.state.processes() == []


def test_the_memory_of_a_killed_process_is_freed(rig: MpsRig) -> None:
    with rig.hold("--alloc", "2GiB") as client:
        client.ready()
        client.kill()
        assert rig.node.state.processes() == []


def test_an_exclusive_gpu_accepts_the_first_process_and_rejects_the_second(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.compute_mode": 3})
    with rig.hold() as first:
        assert first.ready()["mps"] is False
        second = rig.run("alloc", "1MiB")
        assert (second.status, second.error) == (2, UNAVAILABLE)
        assert "all CUDA-capable devices are busy or unavailable" in second.report["message"]
        assert f"held by process {first.pid}" in second.report["message"]
        assert rig.run("alloc", "1MiB", "--device", "1").status == 0
    assert rig.run("alloc", "1MiB").status == 0


def test_a_prohibited_gpu_accepts_no_process(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.compute_mode": 2})
    assert rig.run("alloc", "1MiB").error == UNAVAILABLE
    mixed = rig.run("info")
    assert mixed.error == UNAVAILABLE
    assert [device["sms"] for device in mixed.report["devices"]] == [None, 40]


def test_after_its_daemon_was_killed_an_exclusive_gpu_accepts_one_process_without_limits(
    rig: MpsRig,
) -> None:
    rig.node.set({"gpu.0.compute_mode": 3})
    daemon = rig.daemon()
    daemon.start()
    daemon.command("set_default_device_pinned_mem_limit 0 1G")
    rig.run("info", "--device", "0", daemon=daemon)
    server = daemon.server_pid()
    daemon.kill()
    eventually(lambda: server not in {process.pid for process in rig.node.state.processes()})
    with rig.hold("--alloc", "4GiB", daemon=daemon) as stray:
        assert stray.ready()["mps"] is False
        assert rig.run("info", "--device", "0", daemon=daemon).error == UNAVAILABLE


def test_lost_and_absent_gpus_are_not_found(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.lost": 1})
    assert seen(rig) == [rig.uuids[1]]
    rig.node.set({"gpu.1.present": 0})
    alone = rig.run("info")
    assert (alone.status, alone.error) == (2, "CUDA_ERROR_NO_DEVICE")


def test_a_gpu_lost_in_use_fails_the_process(rig: MpsRig) -> None:
    with rig.hold() as client:
        client.ready()
        rig.node.set({"gpu.0.lost": 1})
        assert client.next_report()["error"] == UNAVAILABLE
        assert client.wait() == 2


def test_a_fault_without_mps_ends_only_its_own_process(rig: MpsRig) -> None:
    with rig.hold() as other:
        other.ready()
        outcome = rig.run("fault")
        assert (outcome.status, outcome.error) == (2, "CUDA_ERROR_LAUNCH_FAILED")
        with pytest.raises(TimeoutError):
            other.next_report(timeout=0.2)


def test_a_process_that_cannot_write_the_state_is_still_limited_by_the_memory(rig: MpsRig) -> None:
    procs = rig.node.directory / "state" / "procs"
    procs.rmdir()
    filled = rig.run("fill")
    gpu = rig.node.gpus()[0]
    room = gpu.memory_total_bytes - gpu.memory_reserved_bytes
    assert filled.report["total_bytes"] == room
    assert "not registered" in filled.report["warnings"][0]


def test_without_mps_nvidia_visible_devices_selects_the_gpus(rig: MpsRig) -> None:
    first, second = rig.uuids
    for value, expected in (
        ("all", [first, second]),
        (second, [second]),
        ("1", [second]),
        ("0,1", [first, second]),
        (f"{second},{first}", [first, second]),
        ("GPU-unknown", []),
        ("none", []),
        ("void", []),
        ("", []),
    ):
        assert seen(rig, NVIDIA_VISIBLE_DEVICES=value) == expected, value


def test_a_client_sees_every_gpu_of_its_server_unless_cuda_visible_devices_restricts_it(
    rig: MpsRig,
) -> None:
    first, second = rig.uuids
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": "1,0"}) as daemon:
        for given in ("all", first, "1", "GPU-unknown"):
            env = {**daemon.env(), "NVIDIA_VISIBLE_DEVICES": given}
            assert seen(rig, **env) == [second, first], given
            for chosen, expected in (
                ("0", [second]),
                ("1", [first]),
                ("1,0", [first, second]),
                (first, [first]),
                (second[:10], [second]),
                ("GPU-unknown", []),
                ("", []),
            ):
                assert seen(rig, CUDA_VISIBLE_DEVICES=chosen, **env) == expected, chosen
        outside = {"NVIDIA_VISIBLE_DEVICES": second}
        used = rig.run("alloc", "1GiB", "--device", "1", daemon=daemon, env=outside)
        assert used.device["uuid"] == first


@pytest.mark.parametrize("value", ["none", "void", ""])
def test_a_client_without_any_gpu_does_not_connect_to_mps(rig: MpsRig, value: str) -> None:
    with rig.daemon() as daemon:
        outcome = rig.run("info", daemon=daemon, env={"NVIDIA_VISIBLE_DEVICES": value})
        assert (outcome.status, outcome.error) == (2, "CUDA_ERROR_NO_DEVICE")
        assert f'NVIDIA_VISIBLE_DEVICES is "{value}"' in outcome.report["message"]
        assert daemon.server_pid() is None


def test_cuda_visible_devices_selects_and_orders(rig: MpsRig) -> None:
    first, second = rig.uuids
    for value, expected in (
        ("1,0", [second, first]),
        (second, [second]),
        (f"{second[:10]},{first}", [second, first]),
        ("GPU-", []),  # a prefix of both
        ("0,7,1", [first]),
        ("-1", []),
        ("", []),
        ("0,0", []),
    ):
        assert seen(rig, CUDA_VISIBLE_DEVICES=value) == expected, value
    only = {"NVIDIA_VISIBLE_DEVICES": second, "CUDA_VISIBLE_DEVICES": "0"}
    assert seen(rig, **only) == [second]


def test_a_mig_device_is_used_like_a_small_gpu(short_path: Path) -> None:
    rig = make_rig(short_path, "a100x2-mig-mixed")
    gpu = rig.node.gpus()[0]
    first, second = gpu.mig[:2]
    with rig.daemon(env={"CUDA_VISIBLE_DEVICES": second.uuid}) as daemon:
        daemon.command("set_default_active_thread_percentage 50")
        daemon.command("set_default_device_pinned_mem_limit 0 2G")
        for base, sms, limit in (({}, second.profile.sms, None), (daemon.env(), 14, 2 * GIB)):
            for value in (second.uuid, "0:1"):
                env = {**base, "NVIDIA_VISIBLE_DEVICES": value}
                device = rig.run("info", env=env).device
                assert device["uuid"] == second.uuid
                assert device["name"] == f"{gpu.name} MIG {second.profile.name}"
                assert device["total_bytes"] == second.profile.memory_mib * MIB
                assert (device["sms"], device["limit_bytes"]) == (sms, limit)
        with rig.hold("--alloc", "1GiB", daemon=daemon) as client:
            client.ready()
            left = second.profile.memory_mib * MIB - GIB - 2 * CONTEXT - SERVER
            alone = rig.run("info", env={"CUDA_VISIBLE_DEVICES": second.uuid}).device
            assert alone["free_bytes"] == left
            filled = rig.run("fill", env={"CUDA_VISIBLE_DEVICES": first.uuid})
            assert filled.report["total_bytes"] == first.profile.memory_mib * MIB


def test_a_process_uses_only_one_mig_device(short_path: Path) -> None:
    rig = make_rig(short_path, "a100x2-mig-mixed")
    first, second = (mig.uuid for mig in rig.node.gpus()[0].mig[:2])
    assert seen(rig) == [first]
    assert seen(rig, CUDA_VISIBLE_DEVICES=f"{second},{first}") == [second]
    assert seen(rig, NVIDIA_VISIBLE_DEVICES=f"{second},{first}") == [first]
