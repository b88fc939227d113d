"""Commands of the control daemon: answers, rejections and the log."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon, MpsError
from tests.surroundings import SCRATCH, remove_directory

from .mps_rig import MpsRig, descriptors, eventually, make_rig, needs_root


@pytest.fixture(scope="module")
def shared() -> Iterator[MpsDaemon]:
    """One daemon for all commands that must not change anything."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir=SCRATCH))
    with make_rig(path).daemon() as mps:
        yield mps
    remove_directory(path)


def test_valid_commands_are_answered(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        for command, output in (
            ("get_server_list", ""),
            ("get_default_active_thread_percentage", "100.0\n"),
            ("set_default_active_thread_percentage 25", "25.0\n"),
            ("get_default_active_thread_percentage", "25.0\n"),
            ("set_default_active_thread_percentage 1", "1.0\n"),
            ("set_default_active_thread_percentage 100", "100.0\n"),
            ("get_default_device_pinned_mem_limit 0", ""),
            ("set_default_device_pinned_mem_limit 0 3G", ""),
            ("get_default_device_pinned_mem_limit 0", "3G\n"),
            ("set_default_device_pinned_mem_limit 7 3072M", ""),
            ("set_default_device_pinned_mem_limit GPU-unknown 1G", ""),
            ("get_default_client_priority", "0\n"),
            ("set_default_client_priority 1", ""),
            ("get_default_client_priority", "1\n"),
            ("get_device_client_list", ""),
            ("start_server -uid 0", ""),
        ):
            done = daemon.run(stdin=f"{command}\n")
            assert (done.returncode, done.stdout) == (0, output), command


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("get_servers", 'Unknown command "get_servers"'),
        ("", 'Unknown command ""'),
        ("get_server_status", "A server PID is required"),
        ("get_server_status 1", "Server 1 not found"),
        ("set_default_active_thread_percentage 0", "100.0"),
        ("set_default_active_thread_percentage abc", "100.0"),
        ("set_active_thread_percentage 1 50", "Server 1 not found"),
        ("set_default_device_pinned_mem_limit 0", ""),
        ("set_default_client_priority 2", "Invalid priority value - must be 0 or 1!"),
        ("start_server -uid root", "A user id (UID) is required to start a new server"),
        ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1"),
        ("ps", "Server not found"),
        ("sm_partition add GPU-1 2", 'Unknown command "sm_partition"'),
    ],
)
def test_a_command_without_effect_exits_with_0(
    shared: MpsDaemon, command: str, answer: str
) -> None:
    done = shared.run(stdin=f"{command}\n")
    assert (done.returncode, done.stdout.strip()) == (0, answer)
    assert shared.command("get_default_active_thread_percentage") == "100.0"
    assert shared.command("get_default_device_pinned_mem_limit 0") == ""


def test_an_unknown_line_does_not_stop_the_lines_after_it(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        lines = "set_default_active_thread_percentage 30\nbogus\n" * 2
        done = daemon.run(stdin=f"{lines}get_default_active_thread_percentage\n")
        assert done.returncode == 0
        assert done.stdout.splitlines()[-1] == "30.0"


def test_pinned_limits_are_kept_by_the_name_they_were_set_with(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 3G")
        daemon.command(f"set_default_device_pinned_mem_limit {rig.uuids[0]} 2048M")
        assert daemon.command("get_default_device_pinned_mem_limit 0") == "3G"
        answer = daemon.command(f"get_default_device_pinned_mem_limit {rig.uuids[0]}")
        assert answer == "2G"


def test_every_command_is_recorded_in_order_with_its_outcome(rig: MpsRig) -> None:
    sent = ["get_server_list", "set_default_active_thread_percentage 40", "bogus 1 2"]
    with rig.daemon() as daemon, rig.daemon("other") as other:
        daemon.run(stdin="\n".join(sent))
        other.command("get_server_list")
        assert daemon.commands() == sent
    record = (rig.node.bin.parent / "state" / "mps" / "commands.log").read_text()
    assert re.search(r"/mps\t1\tbogus 1 2$", record, re.MULTILINE)


def test_log_lines_have_the_format_of_mps(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        rig.run("info", daemon=daemon)
        server = daemon.server_pid()
        control = (daemon.log_directory / "control.log").read_text()
        servers = (daemon.log_directory / "server.log").read_text()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    assert re.search(
        rf"^{stamp}Control +{daemon.pid}\] Starting new server {server} for user {os.geteuid()}$",
        control,
        re.MULTILINE,
    )
    assert f"NEW SERVER {server}: Ready" in control
    assert re.search(rf"NEW CLIENT \d+ from user {os.geteuid()}: Server already exists", control)
    assert re.search(rf"^{stamp}Other +{server}\] ", servers, re.MULTILINE)


@needs_root
def test_another_user_cannot_end_the_daemon(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon:
        os.seteuid(4711)
        try:
            with pytest.raises(MpsError, match="Not enough privilege"):
                daemon.command("quit")
        finally:
            os.seteuid(0)
        assert daemon.command("get_server_list") == ""


def test_the_daemon_survives_garbage_on_its_socket(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        rig.run("info", daemon=daemon)
        before = descriptors(daemon.pid)
        for junk in (
            b"\n",
            b"\0\xff\n",
            b"client" * 30000,
            b"command\n",
            b"half a li",
            b"client\nclient\ncommand text=x\n",
        ):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(daemon.pipe_directory / "control"))
                connection.sendall(junk)
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        eventually(lambda: descriptors(daemon.pid) <= before)


def test_a_copy_of_the_program_outside_a_node_reaches_a_daemon_but_cannot_start_one(
    rig: MpsRig, tmp_path: Path
) -> None:
    alone = shutil.copy(rig.node.bin / "nvidia-cuda-mps-control", tmp_path)
    with rig.daemon() as daemon:
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe_directory)}

        def run(*words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [alone, *words], env=env, input=lines, capture_output=True, text=True, check=False
            )

        asked = run(lines="set_default_active_thread_percentage 25\nget_server_list\nno such\n")
        assert asked.stdout == '25.0\nUnknown command "no"\n'
        assert asked.returncode == 0
        refused = run("-d")
        assert refused.returncode == 1
        assert "no simulated node" in refused.stderr
