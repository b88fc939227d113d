"""The control daemon's process, files and commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon, MpsError, is_running, wait_until_gone
from tests.surroundings import SCRATCH, remove_directory

from .mps_rig import MpsRig, descriptors, eventually, make_rig, needs_root, session_of

CANNOT_FIND = "Cannot find MPS control daemon process\n"


@pytest.fixture
def rig(short_path: Path) -> MpsRig:
    return make_rig(short_path)


@pytest.fixture(scope="module")
def shared() -> Iterator[MpsDaemon]:
    """One daemon for all commands that must not change anything."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir=SCRATCH))
    with make_rig(path).daemon() as mps:
        yield mps
    remove_directory(path)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")


def test_without_a_daemon_every_command_says_so_and_exits_with_one(rig: MpsRig) -> None:
    daemon = rig.daemon()
    for done in (
        daemon.run("get_server_list"),
        daemon.run(stdin="quit\n"),
        daemon.run(stdin="get_default_active_thread_percentage\n"),
    ):
        assert (done.returncode, done.stdout) == (1, CANNOT_FIND)


def test_a_started_daemon_answers_at_once_and_shows_its_files(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        assert daemon.run("get_default_active_thread_percentage").stdout == "100.0\n"
        control = (daemon.pipe_directory / "control").stat()
        assert stat.S_ISSOCK(control.st_mode)
        assert stat.S_IMODE(control.st_mode) == 0o666
        assert (daemon.pipe_directory / "control_lock").exists()
        pid_file = daemon.pipe_directory / "nvidia-cuda-mps-control.pid"
        assert int(pid_file.read_text()) == daemon.pid
        assert (daemon.log_directory / "control.log").exists()


def test_a_background_daemon_lets_go_of_whoever_started_it(rig: MpsRig) -> None:
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
        assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path("/")
    finally:
        daemon.stop()


def test_daemon_and_server_can_be_found_by_name(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("start_server -uid 0")
        server = daemon.server_pid()
        assert server
        assert command_line(daemon.pid) == b"nvidia-cuda-mps-control -d"
        eventually(lambda: command_line(server) == b"nvidia-cuda-mps-server")


def test_a_second_daemon_on_the_same_pipe_directory_is_refused(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        done = daemon.run("-d")
        assert done.returncode == 1
        assert "An instance of this daemon is already running" in done.stdout + done.stderr
        assert daemon.run("get_server_list").returncode == 0


def test_two_daemons_on_two_pipe_directories_do_not_know_each_other(rig: MpsRig) -> None:
    with rig.daemon("one") as one, rig.daemon("two") as two:
        one.command("set_default_active_thread_percentage 25")
        assert two.command("get_default_active_thread_percentage") == "100.0"


def test_a_socket_path_that_is_too_long_ends_the_daemon_after_it_seemed_to_start(
    rig: MpsRig,
) -> None:
    daemon = rig.daemon("x" * 100)
    done = daemon.run("-d")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert daemon.run("get_server_list").stdout == CANNOT_FIND
    log = (daemon.log_directory / "control.log").read_text()
    assert "the maximum is 107: use a shorter CUDA_MPS_PIPE_DIRECTORY" in log


def test_the_longest_possible_socket_path_works(rig: MpsRig) -> None:
    room = 107 - len(str(rig.directory)) - len("//control")
    with rig.daemon("x" * room) as daemon:
        assert daemon.command("get_server_list") == ""


@pytest.mark.parametrize("how", ["quit", "SIGTERM"])
def test_an_orderly_end_takes_server_and_files_along(rig: MpsRig, how: str) -> None:
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
    assert not is_running(server)
    assert not (daemon.pipe_directory / "control").exists()
    assert rig.node.state.processes() == []


def test_after_quit_the_next_daemon_can_start_at_once(rig: MpsRig) -> None:
    daemon = rig.daemon()
    for _ in range(3):
        daemon.start()
        assert daemon.run(stdin="quit\n").returncode == 0
    daemon.stop()


def test_a_killed_daemon_leaves_a_stale_socket_and_takes_its_server_along(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("start_server -uid 0")
    server = daemon.server_pid()
    assert server
    daemon.kill()
    wait_until_gone(server)
    assert (daemon.pipe_directory / "control").exists()
    assert daemon.run("get_server_list").stdout == CANNOT_FIND
    assert rig.node.state.processes() == []


def test_a_new_daemon_takes_over_what_a_killed_one_left_but_not_its_settings(rig: MpsRig) -> None:
    daemon = rig.daemon()
    daemon.start()
    daemon.command("set_default_active_thread_percentage 25")
    daemon.command("set_default_device_pinned_mem_limit 0 2G")
    daemon.kill()
    with daemon:
        assert daemon.command("get_default_active_thread_percentage") == "100.0"
        assert daemon.command("get_default_device_pinned_mem_limit 0") == ""


def test_a_foreground_daemon_serves_until_it_is_told_to_end(rig: MpsRig) -> None:
    daemon = rig.daemon()
    env = daemon.env() | {"CUDA_MPS_LOG_DIRECTORY": str(daemon.log_directory)}
    program = rig.node.bin / "nvidia-cuda-mps-control"
    with subprocess.Popen([program, "-f"], env=env) as process:
        eventually(lambda: daemon.run("get_server_list").returncode == 0)
        assert daemon.run("quit").returncode == 0
        assert process.wait(90) == 0


def test_right_commands_are_answered(rig: MpsRig) -> None:
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
            ("", ""),
        ):
            done = daemon.run(stdin=f"{command}\n")
            assert (done.returncode, done.stdout) == (0, output), command


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("get_servers", "Unknown command: get_servers"),
        ("GET_SERVER_LIST", "Unknown command: GET_SERVER_LIST"),
        ("get_server_list now", "Wrong number of arguments"),
        ("get_server_status", "Wrong number of arguments"),
        ("get_server_status 1", "Server 1 does not exist"),
        ("get_server_status abc", "server pid 'abc' is not a whole number"),
        ("set_default_active_thread_percentage", "Wrong number of arguments"),
        ("set_default_active_thread_percentage 0", "not a whole number from 1 to 100"),
        ("set_default_active_thread_percentage 101", "not a whole number from 1 to 100"),
        ("set_default_active_thread_percentage 12.5", "not a whole number from 1 to 100"),
        ("set_default_active_thread_percentage 50%", "not a whole number from 1 to 100"),
        ("set_active_thread_percentage 1 50", "Server 1 does not exist"),
        ("set_default_device_pinned_mem_limit 0", "Wrong number of arguments"),
        ("set_default_device_pinned_mem_limit 0 3", "followed by M or G"),
        ("set_default_device_pinned_mem_limit 0 3T", "followed by M or G"),
        ("set_default_device_pinned_mem_limit 0 3Gi", "followed by M or G"),
        ("set_default_device_pinned_mem_limit 0 1.5G", "followed by M or G"),
        ("set_default_device_pinned_mem_limit 0 0M", "followed by M or G"),
        ("set_default_device_pinned_mem_limit 0=3G", "Wrong number of arguments"),
        ("set_default_client_priority 2", "neither 0 (normal) nor 1"),
        ("start_server 0", "Wrong number of arguments"),
        ("start_server uid 0", "Usage: start_server -uid <uid>"),
        ("start_server -uid root", "uid 'root' is not a whole number"),
        ("terminate_client 1 2", "Server 1 does not exist"),
        ("ps -x 1", "Usage: ps"),
        ("sm_partition add GPU-1 2", "Unknown command: sm_partition"),
        ("lspart", "Unknown command: lspart"),
        ("quit now", "Wrong number of arguments"),
    ],
)
def test_a_wrong_command_is_refused_with_its_reason(
    shared: MpsDaemon, command: str, complaint: str
) -> None:
    done = shared.run(stdin=f"{command}\n")
    assert done.returncode == 1
    assert complaint in done.stdout
    assert shared.command("get_default_active_thread_percentage") == "100.0"
    assert shared.command("get_default_device_pinned_mem_limit 0") == ""


def test_a_wrong_line_does_not_stop_the_lines_after_it(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        lines = "set_default_active_thread_percentage 30\nbogus\n" * 2
        done = daemon.run(stdin=f"{lines}get_default_active_thread_percentage\n")
        assert done.returncode == 1
        assert done.stdout.splitlines()[-1] == "30.0"


def test_pinned_limits_are_kept_by_the_name_they_were_set_with(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 3G")
        daemon.command(f"set_default_device_pinned_mem_limit {rig.uuids[0]} 2048M")
        assert daemon.command("get_default_device_pinned_mem_limit 0") == "3G"
        answer = daemon.command(f"get_default_device_pinned_mem_limit {rig.uuids[0]}")
        assert answer == "2048M"


def test_every_command_is_recorded_in_order_with_its_outcome(rig: MpsRig) -> None:
    sent = ["get_server_list", "set_default_active_thread_percentage 40", "bogus 1 2"]
    with rig.daemon() as daemon, rig.daemon("other") as other:
        daemon.run(stdin="\n".join(sent))
        other.command("get_server_list")
        assert daemon.commands() == sent
    record = (rig.node.bin.parent / "state" / "mps" / "commands.log").read_text()
    assert re.search(r"/mps\t1\tbogus 1 2$", record, re.MULTILINE)


def test_log_lines_have_the_shape_of_mps(rig: MpsRig) -> None:
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


def test_the_version_option_names_the_driver(rig: MpsRig) -> None:
    done = rig.daemon().run("-v")
    assert done.returncode == 0
    assert re.search(r"\b570\.\d+", done.stdout)


@pytest.mark.parametrize("options", [["-x"], ["-d", "--bogus"], ["-multiuser-server"]])
def test_wrong_options_are_refused_with_the_usage(rig: MpsRig, options: list[str]) -> None:
    done = rig.daemon().run(*options)
    assert done.returncode == 1
    assert "usage: nvidia-cuda-mps-control" in done.stderr


@pytest.mark.parametrize("driver", [535, 570])
def test_static_partitioning_needs_a_newer_driver(short_path: Path, driver: int) -> None:
    daemon = make_rig(short_path, driver=driver).daemon(static_partitioning=True)
    with pytest.raises(MpsError, match=f"Unknown option '-S' for driver branch {driver}"):
        daemon.start()


def test_protocol_three_is_refused_because_it_is_not_simulated(short_path: Path) -> None:
    rig = make_rig(short_path, driver=615)
    done = rig.daemon().run("-d", "-p", "3")
    assert done.returncode == 1
    assert "MPS protocol version '3' is not simulated" in done.stderr
    with pytest.raises(MpsError, match="not simulated"):
        rig.daemon(env={"CUDA_MPS_PROTOCOL_VERSION": "3"}).start()
    with rig.daemon(env={"CUDA_MPS_PROTOCOL_VERSION": "2"}) as daemon:
        daemon.command("set_default_device_pinned_mem_limit 0 4096K")


def test_older_drivers_do_not_know_protocol_versions(rig: MpsRig) -> None:
    assert "Unknown option '-p'" in rig.daemon().run("-d", "-p", "3").stderr
    with rig.daemon(env={"CUDA_MPS_PROTOCOL_VERSION": "3"}) as daemon:
        assert daemon.command("get_server_list") == ""


@needs_root
def test_commands_of_another_user_are_refused(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon:
        os.seteuid(4711)
        try:
            with pytest.raises(MpsError, match="Permission denied: user 4711 does not own"):
                daemon.command("quit")
        finally:
            os.seteuid(0)
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
    assert "-multiuser-server requires root" in done.stderr


def test_garbage_on_the_socket_does_no_harm(rig: MpsRig) -> None:
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


def test_a_daemon_that_was_never_started_can_be_stopped(rig: MpsRig) -> None:
    daemon: MpsDaemon = rig.daemon()
    daemon.stop()


def test_the_program_alone_reaches_a_daemon_but_starts_none(rig: MpsRig, tmp_path: Path) -> None:
    alone = shutil.copy(rig.node.bin / "nvidia-cuda-mps-control", tmp_path)
    with rig.daemon() as daemon:
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe_directory)}

        def run(*words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [alone, *words], env=env, input=lines, capture_output=True, text=True, check=False
            )

        asked = run(lines="set_default_active_thread_percentage 25\n\nget_server_list\nno such\n")
        assert asked.stdout.startswith("25.0\n")
        assert asked.returncode == 1  # the last command
        assert run("get_default_active_thread_percentage").stdout == "25.0\n"
        refused = run("-d")
        assert refused.returncode == 1
        assert "no simulated node" in refused.stderr
