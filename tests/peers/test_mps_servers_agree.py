"""The stand-in searches, starts and ends servers, and logs, as NVIDIA's control program does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import is_running, wait_until_gone
from tests.node.mps_commands import occupied, send
from tests.node.rig import eventually

from .driver_programs import DriverPrograms
from .mps_pair import MpsPair, Side, mps_pair, without_times

PERCENTAGE = "get_default_active_thread_percentage\n"
SERVER = "nvidia-cuda-mps-server"


@pytest.fixture
def pair(driver_programs: DriverPrograms, scratch: Path) -> Iterator[MpsPair]:
    with mps_pair(driver_programs, scratch) as both:
        yield both


def put_server(side: Side) -> Path:
    """A server in a directory of its own, which notes its start and its end."""
    directory = side.directory / "sbin"
    directory.mkdir()
    events = side.directory / "events"
    events.touch()
    events.chmod(0o666)
    program = directory / SERVER
    program.write_text(
        f"#!/bin/bash\necho started $(/usr/bin/id -u) $# >> {events}\n"
        f"trap 'echo ended >> {events}; exit' INT\n"
        f"while [ -e {events} ]; do /bin/sleep 0.02; done\n"  # not longer than the test
    )
    program.chmod(0o755)
    return directory


def events(side: Side) -> list[str]:
    return (side.directory / "events").read_text().splitlines()


def has_ended(side: Side) -> bool:
    return "ended" in events(side)


def server_of(side: Side) -> str:
    return send([side.program], side.pipe, "get_server_list")


def logs_an_end(side: Side) -> bool:
    return "exited with status 1" in (side.log / "control.log").read_text()


def is_gone(side: Side) -> bool:
    return not side.daemons()


def started(side: Side, path: str | None, mode: str = "-d") -> None:
    assert side.run(mode, env={} if path is None else {"PATH": path}).status == 0


@pytest.mark.parametrize("user", [0, 1000])
def test_the_server_is_searched_in_path(pair: MpsPair, user: int) -> None:
    for side in pair.sides():
        started(side, f"/nowhere:{put_server(side)}:/bin")
        side.run(lines=f"start_server -uid {user}\n")
        eventually(partial(events, side), "the server")
        eventually(partial(server_of, side), "its pid")
        side.run(lines=f"shutdown_server {server_of(side)} -f\n")
        eventually(partial(has_ended, side), "the end of the server")
    assert events(pair.ours) == events(pair.real) == [f"started {user} 0", "ended"]


def test_a_server_that_is_not_in_path_does_not_start(pair: MpsPair) -> None:
    for side in pair.sides():
        started(side, str(side.directory))
        assert side.run(lines="start_server -uid 0\n").stdout == ""

        eventually(partial(logs_an_end, side), "the end of the server in the log")
        assert side.run(lines="get_server_list\n").stdout == ""


@pytest.mark.parametrize("line", ["quit", "quit -t 1", "quit -t 0", "quit -t", "quit -x"])
def test_quit_waits_for_the_server_or_for_its_time(pair: MpsPair, line: str) -> None:
    waits = not any(sign.isdigit() for sign in line)
    for side in pair.sides():
        started(side, str(put_server(side)))
        side.run(lines="start_server -uid 0\n")
        eventually(partial(events, side), "the server")
        [daemon] = side.daemons()
        server = int(server_of(side))
        directories = {"CUDA_MPS_PIPE_DIRECTORY": str(side.pipe)}
        began = time.monotonic()
        with subprocess.Popen([side.program], env=directories, stdin=subprocess.PIPE) as quitter:
            assert quitter.stdin is not None
            quitter.stdin.write(f"{line}\n".encode())
            quitter.stdin.close()
            if waits:
                with pytest.raises(subprocess.TimeoutExpired):
                    quitter.wait(0.5)
                assert is_running(daemon)
                os.kill(server, 2)
            assert quitter.wait(30) == 0
        wait_until_gone(daemon)
        if line == "quit -t 1":
            assert time.monotonic() - began > 0.9
        assert "ended" in events(side)


def test_lines_after_quit_are_not_answered(pair: MpsPair) -> None:
    for side in pair.sides():
        started(side, None)
        outcome = side.run(lines=f"{PERCENTAGE}quit\n{PERCENTAGE}foo\n")
        # If NVIDIA's program notices that it cannot send the next line, it also loses its output.
        assert outcome.stdout in ("100.0\n", "")
        eventually(partial(is_gone, side), "the end of the daemon")


def test_one_program_at_a_time_sends_commands(pair: MpsPair) -> None:
    for side in pair.sides():
        started(side, None)
        with occupied(side.program, side.pipe):
            for _ in range(5):
                assert side.run(lines=PERCENTAGE).stdout == ""
        assert send([side.program], side.pipe, "get_default_client_priority") == "0"


@pytest.mark.parametrize("mode", ["-d", "-f"])
def test_command_line_and_log_are_alike(pair: MpsPair, mode: str) -> None:
    found = []
    for side in pair.sides():
        output = side.directory / "output"
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(side.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(side.log),
        }
        with output.open("w") as file:
            program = subprocess.Popen([side.program, mode], env=env, stdout=file)
        eventually((side.pipe / "control").is_socket, "the daemon")
        eventually(side.daemons, "its process")
        [daemon] = side.daemons()
        words = Path(f"/proc/{daemon}/cmdline").read_text().split("\0")[1:-1]
        lines = (
            "get_default_active_thread_percentage\nfoo\nset_default_active_thread_percentage 0\n"
        )
        send([side.program], side.pipe, f"{lines}get_default_device_pinned_mem_limit 0")
        side.run(lines="quit\n")
        wait_until_gone(daemon)
        assert program.wait() == 0
        log = output if mode == "-f" else side.log / "control.log"
        text = log.read_text().replace(str(side.directory), "<directory>")
        found.append(([word for word in words if word], without_times(text)))
        assert sorted(path.name for path in side.log.iterdir() if path.name == "control.log") == (
            [] if mode == "-f" else ["control.log"]
        )
    assert found[1] == found[0]
    assert found[0][0] == [mode]
