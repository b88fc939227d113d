"""simcuda as a program: arguments, output and signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import pytest

from .mps_rig import GIB, MIB, MpsRig


def test_it_finds_its_node_by_its_own_path_or_by_the_variable(rig: MpsRig) -> None:
    away = rig.directory / "simcuda"
    shutil.copy(rig.simcuda, away)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(rig.directory)}
    lost = subprocess.run([away, "info"], env=env, capture_output=True, check=False)
    assert json.loads(lost.stdout)["error"] == "CUDA_ERROR_NO_DEVICE"
    env["GPUSLICE_SIM_NODE"] = str(rig.node.directory)
    found = subprocess.run([away, "info"], env=env, capture_output=True, check=True)
    assert len(json.loads(found.stdout)["devices"]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_hold_ends_with_0_on_a_signal(rig: MpsRig, number: signal.Signals) -> None:
    with rig.hold() as client:
        client.ready()
        os.kill(client.pid, number)
        assert client.wait() == 0
    assert list((rig.node.directory / "state" / "procs").iterdir()) == []


def test_hold_ends_at_the_end_of_its_input(rig: MpsRig) -> None:
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
def test_invalid_arguments_are_rejected_with_a_hint(rig: MpsRig, arguments: list[str]) -> None:
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
