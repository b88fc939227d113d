"""Which GPUs a CUDA program finds, with and without MPS, on the node and in a container."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice_sim.mps.launch import MpsDaemon

from .mps_rig import CONTEXT, GIB, MIB, SERVER, MpsRig, eventually, make_rig, needs_root

UNAVAILABLE = "CUDA_ERROR_DEVICE_UNAVAILABLE"


@pytest.fixture
def rig(short_path: Path) -> MpsRig:
    return make_rig(short_path)


def seen(rig: MpsRig, **env: str) -> list[str]:
    return [device["uuid"] for device in rig.run("info", env=env).report["devices"]]


def test_without_a_daemon_it_runs_silently_without_mps_and_limits(rig: MpsRig) -> None:
    env = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
    }
    info = rig.run("info", "--device", "0", env=env)
    assert info.status == 0
    assert (info.report["mps"], info.report["server_pid"]) == (False, None)
    assert (info.device["sms"], info.device["limit_bytes"]) == (40, None)
    assert info.report["warnings"] == []


def test_without_mps_it_takes_the_whole_gpu_and_shows_itself(rig: MpsRig) -> None:
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


def test_a_killed_process_gives_its_memory_back(rig: MpsRig) -> None:
    with rig.hold("--alloc", "2GiB") as client:
        client.ready()
        client.kill()
        assert rig.node.state.processes() == []


def test_an_exclusive_gpu_takes_the_first_process_and_refuses_the_second(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.compute_mode": 3})
    with rig.hold() as first:
        assert first.ready()["mps"] is False
        second = rig.run("alloc", "1MiB")
        assert (second.status, second.error) == (2, UNAVAILABLE)
        assert "all CUDA-capable devices are busy or unavailable" in second.report["message"]
        assert f"held by process {first.pid}" in second.report["message"]
        assert rig.run("alloc", "1MiB", "--device", "1").status == 0
    assert rig.run("alloc", "1MiB").status == 0


def test_a_prohibited_gpu_takes_nobody(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.compute_mode": 2})
    assert rig.run("alloc", "1MiB").error == UNAVAILABLE
    mixed = rig.run("info")
    assert mixed.error == UNAVAILABLE
    assert [device["sms"] for device in mixed.report["devices"]] == [None, 40]


def test_a_dead_daemon_on_an_exclusive_gpu_lets_one_stray_in_without_limits(rig: MpsRig) -> None:
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


def test_without_mps_the_runtimes_variable_decides(rig: MpsRig) -> None:
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


def test_a_client_sees_every_gpu_of_its_server_unless_cuda_visible_devices_narrows_it(
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
def test_a_client_without_any_gpu_does_not_get_as_far_as_mps(rig: MpsRig, value: str) -> None:
    with rig.daemon() as daemon:
        outcome = rig.run("info", daemon=daemon, env={"NVIDIA_VISIBLE_DEVICES": value})
        assert (outcome.status, outcome.error) == (2, "CUDA_ERROR_NO_DEVICE")
        assert f'NVIDIA_VISIBLE_DEVICES is "{value}"' in outcome.report["message"]
        assert daemon.server_pid() is None


def test_cuda_visible_devices_chooses_and_orders(rig: MpsRig) -> None:
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


def test_a_mig_device_is_a_small_gpu_of_its_own(short_path: Path) -> None:
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


def jail(rig: MpsRig, daemon: MpsDaemon | None, nodes: tuple[int, ...] = ()) -> Path:
    """What a container has: the program, the pipe directory, device nodes; no simulated node."""
    root = rig.directory / "jail"
    (root / "dev").mkdir(parents=True)
    (root / "mps").mkdir()
    shutil.copy(rig.simcuda, root / "simcuda")
    if daemon is not None:
        os.link(daemon.pipe_directory / "control", root / "mps" / "control")
    for minor in nodes:
        (root / "dev" / f"nvidia{minor}").touch()
    return root


def enter(root: Path, env: Mapping[str, str], *arguments: str, user: int = 0) -> dict[str, Any]:
    # A program of its own does it: code of ours between fork and exec may hang, as other threads'
    # locks are never released there.
    done = subprocess.run(
        [str(shutil.which("chroot")), f"--userspec={user}:0", root, "/simcuda", *arguments],
        env={"CUDA_MPS_PIPE_DIRECTORY": "/mps", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    return dict(json.loads(done.stdout))


@needs_root
def test_in_a_container_the_server_tells_everything(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon(multiuser=True) as daemon:
        daemon.command("set_default_active_thread_percentage 50")
        daemon.command("set_default_device_pinned_mem_limit 0 2G")
        root = jail(rig, daemon)
        env = {"NVIDIA_VISIBLE_DEVICES": rig.uuids[0], "CUDA_VISIBLE_DEVICES": rig.uuids[0]}
        filled = enter(root, env, "fill", user=65534)
        assert filled["total_bytes"] == 2 * GIB
        [device] = enter(root, env, "info", user=65534)["devices"]
        gpu = rig.node.gpus()[0]
        assert device["uuid"] == gpu.uuid
        assert device["name"] == gpu.name
        assert device["total_bytes"] == gpu.memory_total_bytes
        assert (device["sms"], device["sms_total"]) == (20, 40)


@needs_root
@pytest.mark.parametrize(
    ("nodes", "variable", "expected"),
    [
        ((1,), None, [0, 1]),
        ((1,), "void", [0, 1]),  # CDI injects the nodes and leaves this behind
        ((1,), "none", [0, 1]),
        ((1,), "1", [0, 1]),
        ((), "1", [0, 1]),
        ((), None, [0, 1]),
        ((), "void", []),
        ((), "none", []),
        ((), "", []),
    ],
)
def test_in_a_container_one_gpu_opens_the_way_to_all_of_the_server(
    rig: MpsRig, nodes: tuple[int, ...], variable: str | None, expected: list[int]
) -> None:
    env = {} if variable is None else {"NVIDIA_VISIBLE_DEVICES": variable}
    with rig.daemon() as daemon:
        devices = enter(jail(rig, daemon, nodes), env, "info")["devices"]
        assert [device["uuid"] for device in devices] == [rig.uuids[index] for index in expected]


@needs_root
def test_without_mps_void_leaves_the_gpus_whose_nodes_are_there(rig: MpsRig) -> None:
    root = jail(rig, None, (1,))
    shutil.copytree(rig.node.directory / "state", root / "node" / "state")
    env = {"GPUSLICE_SIM_NODE": "/node"}
    for variable, expected in (("void", [1]), ("none", []), ("0", [0]), ("all", [0, 1])):
        devices = enter(root, env | {"NVIDIA_VISIBLE_DEVICES": variable}, "info")["devices"]
        uuids = [device["uuid"] for device in devices]
        assert uuids == [rig.uuids[index] for index in expected], variable


@needs_root
def test_in_a_container_without_mps_there_is_nothing_to_work_with(rig: MpsRig) -> None:
    report = enter(jail(rig, None, (0,)), {}, "info")
    assert report["error"] == "CUDA_ERROR_NO_DEVICE"
    assert "no MPS daemon answers and no simulated node is reachable" in str(report["message"])


@needs_root
def test_the_state_shows_the_pid_of_the_host_not_of_the_container(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        command = ["unshare", "--pid", "--fork", str(rig.simcuda), "hold", "--until-eof"]
        with subprocess.Popen(
            command, env=daemon.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin
            assert process.stdout
            report = json.loads(process.stdout.readline())
            assert report["pid"] == 1
            assert report["host_pid"] > 1
            assert rig.used_by(report["host_pid"]) == {rig.uuids[0]: CONTEXT}
            assert str(report["host_pid"]) in daemon.command("ps")
            process.stdin.close()
        assert process.returncode == 0


def test_it_finds_its_node_by_its_own_place_or_by_the_variable(rig: MpsRig) -> None:
    away = rig.directory / "simcuda"
    shutil.copy(rig.simcuda, away)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(rig.directory)}
    lost = subprocess.run([away, "info"], env=env, capture_output=True, check=False)
    assert json.loads(lost.stdout)["error"] == "CUDA_ERROR_NO_DEVICE"
    env["GPUSLICE_SIM_NODE"] = str(rig.node.directory)
    found = subprocess.run([away, "info"], env=env, capture_output=True, check=True)
    assert len(json.loads(found.stdout)["devices"]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_hold_ends_in_order_on_a_signal(rig: MpsRig, number: signal.Signals) -> None:
    with rig.hold() as client:
        client.ready()
        os.kill(client.pid, number)
        assert client.wait() == 0
    assert list((rig.node.directory / "state" / "procs").iterdir()) == []


def test_hold_until_the_end_of_its_input(rig: MpsRig) -> None:
    process = subprocess.run(
        [rig.simcuda, "hold", "--until-eof", "--alloc", "16MiB"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(rig.directory)},
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert process.returncode == 0
    assert json.loads(process.stdout)["allocated_bytes"] == 16 * MIB


def test_sizes_have_binary_units(rig: MpsRig) -> None:
    for text, size in (("1", 1), ("4KiB", 4096), ("3MiB", 3 * MIB), ("2GiB", 2 * GIB)):
        assert rig.run("alloc", text).report["allocated_bytes"] == size


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bogus"],
        ["alloc"],
        ["alloc", "1GB"],
        ["alloc", "-1"],
        ["alloc", "0"],
        ["info", "extra"],
        ["info", "--bogus"],
        ["info", "--device", "x"],
        ["fill", "--step", "0"],
        ["hold", "--contexts", "100000"],
        ["hold", "--contexts", "0"],
    ],
)
def test_wrong_usage_is_explained(rig: MpsRig, arguments: list[str]) -> None:
    done = subprocess.run([rig.simcuda, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "simcuda --help" in done.stderr


def test_a_device_that_does_not_exist_is_a_cuda_error(rig: MpsRig) -> None:
    outcome = rig.run("alloc", "1MiB", "--device", "5")
    assert (outcome.status, outcome.error) == (2, "CUDA_ERROR_INVALID_DEVICE")


def test_help_and_pretty_output(rig: MpsRig) -> None:
    done = subprocess.run([rig.simcuda, "--help"], capture_output=True, text=True, check=True)
    for word in ("info", "alloc", "fill", "hold", "fault", "exit status"):
        assert word in done.stdout
    lines = subprocess.run(
        [rig.simcuda, "info", "--pretty"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(rig.directory)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(lines) > 20
    assert json.loads("".join(lines))["command"] == "info"


def test_a_fault_without_mps_hits_only_its_own_process(rig: MpsRig) -> None:
    with rig.hold() as other:
        other.ready()
        outcome = rig.run("fault")
        assert (outcome.status, outcome.error) == (2, "CUDA_ERROR_LAUNCH_FAILED")
        with pytest.raises(TimeoutError):
            other.next_report(timeout=0.2)


def test_a_process_that_cannot_write_the_state_still_ends_at_the_memory(rig: MpsRig) -> None:
    procs = rig.node.directory / "state" / "procs"
    procs.rmdir()
    filled = rig.run("fill")
    gpu = rig.node.gpus()[0]
    room = gpu.memory_total_bytes - gpu.memory_reserved_bytes
    assert filled.report["total_bytes"] == room
    assert "not registered" in filled.report["warnings"][0]
