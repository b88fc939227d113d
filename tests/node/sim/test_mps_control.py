"""The control daemon: its process, its files, its options and who may use it."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon, MpsError, wait_until_gone

from .mps_rig import MpsRig, eventually, make_rig, session_of

CANNOT_FIND = "Cannot find MPS control daemon process\n"


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")


def test_without_a_daemon_every_command_reports_that_and_exits_with_1(rig: MpsRig) -> None:
    daemon = rig.daemon()
    for done in (
        daemon.run(stdin="get_server_list\n"),
        daemon.run(stdin="quit\n"),
        daemon.run(stdin="get_default_active_thread_percentage\n"),
    ):
        assert (done.returncode, done.stdout, done.stderr) == (1, "", CANNOT_FIND)


def test_a_started_daemon_answers_at_once_and_has_created_its_files(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        assert daemon.run(stdin="get_default_active_thread_percentage\n").stdout == "100.0\n"
        control = (daemon.pipe_directory / "control").stat()
        assert stat.S_ISSOCK(control.st_mode)
        assert stat.S_IMODE(control.st_mode) == 0o666
        assert (daemon.pipe_directory / "control_lock").exists()
        assert (daemon.pipe_directory / "control_privileged").is_socket()
        assert (daemon.pipe_directory / "log").is_fifo()
        pid_file = daemon.pipe_directory / "nvidia-cuda-mps-control.pid"
        assert int(pid_file.read_text()) == daemon.pid
        assert (daemon.log_directory / "control.log").exists()


def test_a_background_daemon_detaches_from_the_process_that_started_it(rig: MpsRig) -> None:
    reader, writer = os.pipe()
    daemon = rig.daemon()
    env = daemon.env() | {"CUDA_MPS_LOG_DIRECTORY": str(daemon.log_directory)}
    program = rig.node.bin / "nvidia-cuda-mps-control"
    subprocess.run([program, "-d"], env=env, stdout=writer, pass_fds=[writer], check=True)
    os.close(writer)
    daemon.pid = int((daemon.pipe_directory / "nvidia-cuda-mps-control.pid").read_text())
    try:
        assert os.read(reader, 1) == b""  # nobody holds the other end
        os.close(reader)
        assert session_of(daemon.pid) == daemon.pid
        assert {Path(f"/proc/{daemon.pid}/fd/{n}").readlink() for n in range(3)} == {
            Path("/dev/null")
        }
    finally:
        daemon.stop()


def test_daemon_and_server_can_be_found_by_name(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("start_server -uid 0")
        server = daemon.server_pid()
        assert server
        assert command_line(daemon.pid) == b"nvidia-cuda-mps-control\0-d"
        eventually(lambda: command_line(server) == b"nvidia-cuda-mps-server")


def test_a_second_daemon_on_the_same_pipe_directory_is_rejected(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        done = daemon.run("-d")
        assert done.returncode == 1
        assert "An instance of this daemon is already running" in done.stdout + done.stderr
        assert daemon.run(stdin="get_server_list\n").returncode == 0


def test_two_daemons_on_two_pipe_directories_are_independent(rig: MpsRig) -> None:
    with rig.daemon("one") as one, rig.daemon("two") as two:
        one.command("set_default_active_thread_percentage 25")
        assert two.command("get_default_active_thread_percentage") == "100.0"


def test_a_socket_path_that_is_too_long_is_rejected_without_a_word(rig: MpsRig) -> None:
    room = 106 - len(str(rig.directory)) - len("//control_privileged")
    with rig.daemon("x" * room) as daemon:
        assert daemon.command("get_server_list") == ""
    daemon = rig.daemon("x" * (room + 1))
    done = daemon.run("-d")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert daemon.run(stdin="get_server_list\n").stderr == CANNOT_FIND


@pytest.mark.parametrize("how", ["quit", "SIGTERM"])
def test_a_daemon_that_stops_ends_its_server_and_leaves_its_sockets(rig: MpsRig, how: str) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("start_server -uid 0")
    server = daemon.server_pid()
    assert server
    if how == "quit":
        done = daemon.run(stdin="quit\n")
        assert (done.returncode, done.stdout) == (0, "")
    else:
        os.kill(daemon.pid, signal.SIGTERM)
    wait_until_gone(daemon.pid)
    wait_until_gone(server)
    assert (daemon.pipe_directory / "control").exists()
    assert (daemon.pipe_directory / "log").exists() is (how == "SIGTERM")
    eventually(lambda: rig.node.state.processes() == [])


def test_after_quit_the_next_daemon_can_start_at_once(rig: MpsRig) -> None:
    daemon = rig.daemon()
    for _ in range(3):
        daemon.start()
        assert daemon.run(stdin="quit\n").returncode == 0
    daemon.stop()


def test_a_killed_daemon_leaves_a_stale_socket_and_its_server_ends(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("start_server -uid 0")
    server = daemon.server_pid()
    assert server
    daemon.kill()
    wait_until_gone(server)
    assert (daemon.pipe_directory / "control").exists()
    assert daemon.run(stdin="get_server_list\n").stderr == CANNOT_FIND
    assert rig.node.state.processes() == []


def test_a_new_daemon_starts_after_a_killed_one_without_its_settings(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("set_default_active_thread_percentage 25")
    daemon.command("set_default_device_pinned_mem_limit 0 2G")
    daemon.kill()
    with daemon:
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        assert daemon.command("get_default_device_pinned_mem_limit 0") == ""


def test_a_foreground_daemon_serves_until_quit(rig: MpsRig) -> None:
    daemon = rig.daemon()
    env = daemon.env() | {"CUDA_MPS_LOG_DIRECTORY": str(daemon.log_directory)}
    program = rig.node.bin / "nvidia-cuda-mps-control"
    with subprocess.Popen([program, "-f"], env=env) as process:
        eventually(lambda: daemon.run(stdin="get_server_list\n").returncode == 0)
        assert daemon.run(stdin="quit\n").returncode == 0
        assert process.wait(90) == 0


def test_a_daemon_that_was_never_started_can_be_stopped(rig: MpsRig) -> None:
    daemon: MpsDaemon = rig.daemon()
    daemon.stop()


def test_the_version_option_names_the_driver(short_path: Path) -> None:
    done = make_rig(short_path, driver=590).daemon().run("-v")
    assert done.returncode == 0
    assert re.search(r"\b590\.\d+", done.stdout)


@pytest.mark.parametrize("options", [["-x"], ["-d", "--bogus"], ["get_server_list"], ["-v"]])
def test_unknown_options_are_rejected_with_the_usage(rig: MpsRig, options: list[str]) -> None:
    done = rig.daemon().run(*options)
    assert done.returncode == 1
    assert "CUDA MPS Control" in done.stdout


@pytest.mark.parametrize(("driver", "text"), [(535, "Cannot find MPS"), (570, "CUDA MPS Control")])
def test_static_partitioning_needs_a_newer_driver(short_path: Path, driver: int, text: str) -> None:
    daemon = make_rig(short_path, driver=driver).daemon(static_partitioning=True)
    with pytest.raises(MpsError, match=text):
        daemon.start()


def test_protocol_2_is_the_default_of_a_driver_with_protocol_3(short_path: Path) -> None:
    rig = make_rig(short_path, driver=615)
    done = rig.daemon().run("-d", "-p", "4")
    assert done.returncode == 1
    assert "Invalid protocol version: 4" in done.stdout
    assert "Cannot find MPS control daemon" in rig.daemon().run("server", "list").stdout
    with rig.daemon(env={"CUDA_MPS_PROTOCOL_VERSION": "2"}) as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 4096K")
        assert daemon.run("server", "list").returncode == 1


def test_older_drivers_do_not_know_protocol_versions(rig: MpsRig) -> None:
    assert "CUDA MPS Control" in rig.daemon().run("-d", "-p", "3").stdout
    with rig.daemon(env={"CUDA_MPS_PROTOCOL_VERSION": "3"}) as daemon:
        assert daemon.command("get_server_list") == ""


def test_a_multi_user_server_needs_root(rig: MpsRig) -> None:
    # In a user namespace of its own the process has no user id that means anything.
    command = ["unshare", "--user", str(rig.node.bin / "nvidia-cuda-mps-control")]
    done = subprocess.run(
        [*command, "-d", "-multiuser-server"],
        env=rig.daemon().env() | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 1
    assert "Only root user may enable -multiuser-server!" in done.stdout
