"""The stand-in starts, stops and leaves files as NVIDIA's control program does, by branch."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import wait_until_gone

from .driver_programs import DriverPrograms
from .mps_pair import MpsPair, Side, mps_pair

ALICE = 1000
PERCENTAGE = "get_default_active_thread_percentage\n"
ARGUMENTS = [
    [], ["x"], [""], ["-v"], ["-h"], ["--help"], ["-h", "-d"], ["-d", "-h"], ["-d", "x"],
    ["-multiuser-server"], ["-multiuser-server", "-multiuser-server"], ["get_server_list"],
    ["-f", "x"], ["-D"], ["--multiuser-server"],
]  # fmt: skip


@pytest.fixture
def pair(driver_programs: DriverPrograms, scratch: Path) -> Iterator[MpsPair]:
    with mps_pair(driver_programs, scratch) as both:
        yield both


def files(side: Side) -> dict[str, tuple[str, int]]:
    """Name -> type and mode of what is in the pipe directory, and of the directory."""
    found = {path.name: path.lstat().st_mode for path in (side.pipe, *side.pipe.iterdir())}
    return {name: (stat.filemode(mode)[0], stat.S_IMODE(mode)) for name, mode in found.items()}


def end(side: Side, number: signal.Signals) -> None:
    [pid] = side.daemons()
    os.kill(pid, number)
    wait_until_gone(pid)


def wait_for_the_end(pair: MpsPair, daemons: list[int]) -> None:
    for pid in daemons:
        wait_until_gone(pid)
    assert [side.daemons() for side in pair.sides()] == [[], []]


def started(pair: MpsPair, *arguments: str) -> list[int]:
    outcome = pair.agree(*(arguments or ("-d",)))
    assert (outcome.status, outcome.stdout) == (0, "")
    return [pid for side in pair.sides() for pid in side.daemons()]


@pytest.mark.parametrize("runs", [False, True], ids=["no daemon", "a daemon"])
def test_arguments_mean_the_same(pair: MpsPair, runs: bool) -> None:
    if runs:
        started(pair)
    for arguments in ARGUMENTS:
        theirs, ours = (side.run(*arguments, lines=PERCENTAGE) for side in pair.sides())
        if theirs.stdout.startswith("CUDA MPS Control"):  # the text of the help is NVIDIA's
            assert (ours.status, ours.stderr) == (theirs.status, theirs.stderr), arguments
            assert ours.stdout.startswith("CUDA MPS Control"), arguments
        else:
            assert ours == theirs, arguments
    assert [len(side.daemons()) for side in pair.sides()] == [int(runs)] * 2


def test_multi_user_servers_exist_from_555_on(pair: MpsPair) -> None:
    for arguments in (["-d", "-multiuser-server"], ["-multiuser-server", "-d"]):
        assert pair.agree(*arguments).status == (0 if pair.branch >= 555 else 1)
        running = [pid for side in pair.sides() for pid in side.daemons()]
        assert len(running) == (2 if pair.branch >= 555 else 0)
        pair.agree(lines="quit\n")
        wait_for_the_end(pair, running)


def test_a_daemon_has_the_same_files_while_it_runs_and_afterwards(pair: MpsPair) -> None:
    running = started(pair)
    assert files(pair.ours) == files(pair.real) | {"pipe": files(pair.real)["pipe"]}
    assert pair.agree(lines="quit\n").status == 0
    wait_for_the_end(pair, running)
    assert files(pair.ours) == files(pair.real)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_daemon_at_once_and_a_new_one_starts_over_its_files(
    pair: MpsPair, number: signal.Signals
) -> None:
    started(pair)
    for side in pair.sides():
        end(side, number)
    assert files(pair.ours) == files(pair.real)
    assert pair.agree(lines=PERCENTAGE).status == 1
    started(pair)
    assert pair.agree(lines=PERCENTAGE).stdout == "100.0\n"


def test_a_second_daemon_is_refused_alike(pair: MpsPair) -> None:
    started(pair)
    for mode in ("-d", "-f"):
        assert pair.agree(mode).status == 1


def test_root_without_the_privileged_socket_is_refused_alike(pair: MpsPair) -> None:
    """Only `control` is left for root in a container where it is mounted over the other one."""
    started(pair)
    for side in pair.sides():
        (side.pipe / "control_privileged").unlink()
    answer = pair.agree(lines=f"set_default_active_thread_percentage 8\n{PERCENTAGE}quit\n")
    assert ("8.0" in answer.stdout) is (pair.branch < 550)
    assert "Not enough privilege" in answer.stdout


def test_directories_that_cannot_be_used_are_reported_alike(pair: MpsPair) -> None:
    for name in ("missing/parent", "x" * 120):
        for side in pair.sides():
            env = {"CUDA_MPS_PIPE_DIRECTORY": str(side.directory / name)}
            assert side.run("-d", env=env).status == 1
    for side in pair.sides():
        side.pipe.write_text("")
    assert pair.agree("-d").stdout == "Cannot access CUDA_MPS_PIPE_DIRECTORY=<directory>/pipe\n"


def test_a_log_directory_that_cannot_be_created_is_a_warning(pair: MpsPair) -> None:
    theirs, ours = (
        side.run("-d", env={"CUDA_MPS_LOG_DIRECTORY": str(side.directory / "no" / "log")})
        for side in pair.sides()
    )
    assert ours == theirs
    assert theirs.status == 0
    assert "No logs will be available" in theirs.stdout


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "12.5x"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "most"),
        ("CUDA_MPS_CLIENT_PRIORITY", "1"),
        ("CUDA_MPS_CLIENT_PRIORITY", "7"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"),
    ],
)
def test_variables_of_the_daemon_become_the_same_defaults(
    pair: MpsPair, variable: str, value: str
) -> None:
    assert pair.agree("-d", env={variable: value}).status == 0
    lines = f"{PERCENTAGE}get_default_client_priority\nget_default_device_pinned_mem_limit 0\n"
    assert pair.agree(lines=lines).status == 0
