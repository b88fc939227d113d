"""Which GPUs a CUDA program finds in a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice_sim.mps.launch import MpsDaemon

from .mps_rig import CONTEXT, GIB, MpsRig, needs_root


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
def test_in_a_container_the_report_comes_from_the_server(rig: MpsRig) -> None:
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
def test_a_container_with_one_gpu_sees_all_gpus_of_the_server(
    rig: MpsRig, nodes: tuple[int, ...], variable: str | None, expected: list[int]
) -> None:
    env = {} if variable is None else {"NVIDIA_VISIBLE_DEVICES": variable}
    with rig.daemon() as daemon:
        devices = enter(jail(rig, daemon, nodes), env, "info")["devices"]
        assert [device["uuid"] for device in devices] == [rig.uuids[index] for index in expected]


@needs_root
def test_without_mps_void_selects_the_gpus_that_have_a_device_node(rig: MpsRig) -> None:
    root = jail(rig, None, (1,))
    shutil.copytree(rig.node.directory / "state", root / "node" / "state")
    env = {"GPUSLICE_SIM_NODE": "/node"}
    for variable, expected in (("void", [1]), ("none", []), ("0", [0]), ("all", [0, 1])):
        devices = enter(root, env | {"NVIDIA_VISIBLE_DEVICES": variable}, "info")["devices"]
        uuids = [device["uuid"] for device in devices]
        assert uuids == [rig.uuids[index] for index in expected], variable


@needs_root
def test_in_a_container_without_mps_no_gpu_is_found(rig: MpsRig) -> None:
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
