"""Containers can delete the sockets of an MPS daemon, and can occupy it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.mps.launch import is_running
from gpuslice_sim.process import PATIENCE_SECONDS
from tests.timing import timing

from .mps_commands import occupied, send
from .mps_programs import (
    PATIENCE,
    advertised,
    bare,
    client,
    daemons,
    one_replica_each,
    served,
    wait_until_ready,
)
from .rig import ALL, GPU, RESOURCE, Rig, eventually, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]

SOCKETS = ("control", "control_privileged")


def _delete_both(pipe: Path) -> None:
    for name in SOCKETS:
        (pipe / name).unlink()


def _put_directories(pipe: Path) -> None:
    _delete_both(pipe)
    for name in SOCKETS:
        (pipe / name / "full").mkdir(parents=True)


def _put_sockets(pipe: Path) -> None:
    """They answer nothing."""
    _delete_both(pipe)
    for name in SOCKETS:
        with socket.socket(socket.AF_UNIX) as impostor:
            impostor.bind(str(pipe / name))


ATTACKS: dict[str, Callable[[Path], object]] = {
    "the one for everybody is deleted": lambda pipe: (pipe / "control").unlink(),
    "both are deleted": _delete_both,
    "directories are in their place": _put_directories,
    "other sockets are in their place": _put_sockets,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_sockets_of_a_daemon_are_put_back_without_a_restart(rig: Rig, attack: str) -> None:
    pipe = rig.mps_root / GPU / "pipe"
    with served(rig, one_replica_each(4)) as program, advertised(rig, GPU), client(rig) as held:
        held.ready()  # `advertised` waits for the daemon
        before = daemons(rig)
        ATTACKS[attack](pipe)
        program.wait_for_code(Code.MPS_SOCKETS_RESTORED, "sockets=control")
        assert bare(rig).error is None
        rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)))
        assert daemons(rig) == before
        assert is_running(held.pid)
        assert program.stop(PATIENCE) == 0
        # Nothing of it is left for the next daemon.
        assert [path.name for path in pipe.parent.iterdir() if path.is_socket()] == []


def test_sockets_that_were_deleted_while_no_program_ran_are_put_back(rig: Rig) -> None:
    with served(rig, one_replica_each(4)) as killed:
        wait_until_ready(rig)
        before = daemons(rig)
        killed.kill()
        (rig.mps_root / GPU / "pipe" / "control").unlink()
        with served(rig, one_replica_each(4), name="next") as program:
            program.wait_for_code(Code.MPS_SOCKETS_RESTORED)
            assert bare(rig).error is None
            assert daemons(rig) == before


def test_a_deleted_socket_makes_slices_unhealthy(rig: Rig) -> None:
    """Root reaches the daemon through the other socket, and CUDA programs do not."""
    with rig.mps_daemon(GPU) as daemon:
        pipe = daemon.pipe_directory
        with rig.agent(f"--mps-pipe={pipe}", ALL) as agent:
            rig.wait_for_limits(RESOURCE)
            (pipe / "control").unlink()
            rig.wait_for_healthy(RESOURCE, set())
            agent.wait_for_code(Code.MPS_UNAVAILABLE, "was deleted")
            daemon.kill()
            daemon.start()
            rig.wait_for_limits(RESOURCE)


def test_a_program_that_occupies_a_daemon_does_not_make_it_restart(rig: Rig) -> None:
    pipe = rig.mps_root / GPU / "pipe"
    env = timing(mps_command=0.5)
    with served(rig, one_replica_each(4), env=env) as program, advertised(rig, GPU):
        before = daemons(rig)
        with client(rig) as held:
            held.ready()
            with occupied(control(rig), pipe):
                program.wait_for_code(Code.MPS_UNAVAILABLE, "another program keeps")
                # What cannot be verified is not advertised.
                rig.wait_for_healthy(GPU, set(), PATIENCE_SECONDS)
                assert not (rig.mps_root / ".ready").exists()
            wait_until_ready(rig)
            rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)))
            assert is_running(held.pid)
        assert daemons(rig) == before
        assert program.logged(Code.MPS_STARTED) == 1


def test_a_daemon_that_is_occupied_for_moments_answers_all_probes(rig: Rig) -> None:
    pipe = rig.mps_root / GPU / "pipe"
    with served(rig, one_replica_each(4)) as program, advertised(rig, GPU) as plugin:
        daemon = daemons(rig)[GPU]
        programs = (program, plugin)
        before = [each.logged(Code.MPS_UNAVAILABLE) for each in programs]
        # As many programs as possible send commands at the same time.
        script = f"for i in $(seq 60); do echo get_server_list | {control(rig)}; done"
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "PATH": os.environ["PATH"]}
        others = [subprocess.Popen(["sh", "-c", script], env=env) for _ in range(2)]
        for other in others:
            assert other.wait(PATIENCE) == 0
        assert daemons(rig)[GPU] == daemon
        assert [each.logged(Code.MPS_UNAVAILABLE) for each in programs] == before
        assert program.logged(Code.MPS_DEFAULT_REJECTED) == 0


def test_limits_of_a_running_server_that_somebody_raised_are_set_right(rig: Rig) -> None:
    """Every driver lets root in a container change them."""
    with served(rig, one_replica_each(4)) as program:
        wait_until_ready(rig)
        held = client(rig)
        held.ready()
        [server] = _command(rig, "get_server_list").split()
        for name, argument in (
            ("active_thread_percentage", "100"),
            ("device_pinned_mem_limit", "1 9G"),
        ):
            logged = program.logged(Code.MPS_DEFAULT_CHANGED)
            _command(rig, f"set_{name} {server} {argument}")
            program.wait_for_code(Code.MPS_DEFAULT_CHANGED, times=logged + 1)
        assert _command(rig, f"get_active_thread_percentage {server}") == "25.0"
        assert _command(rig, f"get_device_pinned_mem_limit {server} 1") == "3G"
        eventually(lambda: bare(rig, 1).device["limit_bytes"] == 3840 << 20, "the limit")
        held.stop()


def _command(rig: Rig, line: str) -> str:
    return send([control(rig)], rig.mps_root / GPU / "pipe", line)


def control(rig: Rig) -> Path:
    return rig.node.bin / "nvidia-cuda-mps-control"
