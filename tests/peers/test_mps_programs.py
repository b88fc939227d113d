"""The life of MPS daemons with NVIDIA's own control program, by driver branch."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.mps.control import ControlClient
from gpuslice_sim.kubelet import Kubelet
from gpuslice_sim.mps.launch import is_running, kill, wait_until_gone
from tests.node.managed_node import MANAGED, node, served, uuids, wait_until_all_healthy
from tests.node.mps_programs import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    PATIENCE,
    advertised,
    compute_modes,
    gpus_of,
    one_replica_each,
    quarters,
    running,
    wait_until_ready,
)
from tests.node.rig import ALL, GPU, RESOURCE, Rig, eventually

from .conftest import MakeNode
from .driver_programs import DriverPrograms
from .real_mps import RealMps, install

ALICE = 1000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def mps(driver_programs: DriverPrograms, make_node: MakeNode, scratch: Path) -> Iterator[RealMps]:
    node = make_node("t4x2", driver=driver_programs.branch)
    pod_resources = scratch / "pod-resources" / "kubelet.sock"
    with Kubelet(scratch / "device-plugins", pod_resources=pod_resources) as kubelet:
        real = install(Rig(node, kubelet, scratch), driver_programs)
        yield real
        for pid in (*running(real.rig.mps_root).values(), *real.daemons()):
            kill(pid)


def limits(mps: RealMps) -> tuple[str, list[str]]:
    """The default limits: threads, and memory of each GPU."""
    memory = [mps.command(f"get_default_device_pinned_mem_limit {n}") for n in range(2)]
    return mps.command("get_default_active_thread_percentage"), memory


def test_a_daemon_starts_with_the_arguments_of_its_driver_and_leaves_nothing_running(
    mps: RealMps,
) -> None:
    with mps.served(quarters()) as program:
        wait_until_ready(mps.rig)
        [daemon] = mps.daemons()
        words = Path(f"/proc/{daemon}/cmdline").read_text().split("\0")[1:-1]
        assert words == (["-d", "-multiuser-server"] if mps.multi_user else ["-d"])
        assert gpus_of(daemon) == [gpu.uuid for gpu in mps.rig.node.gpus()]
        assert compute_modes(mps.rig) == [EXCLUSIVE_PROCESS] * 2
        assert program.logged(Code.MPS_ONE_USER_AT_A_TIME) == (0 if mps.multi_user else 1)
        assert program.logged(Code.MPS_UNAVAILABLE) == 0
        assert program.stop(PATIENCE) == 0
        assert not is_running(daemon)
        assert compute_modes(mps.rig) == [DEFAULT] * 2
        assert not (mps.rig.mps_root / ".ready").exists()


def test_default_limits_are_set_and_follow_the_settings(mps: RealMps) -> None:
    with mps.served(one_replica_each(4)) as program:
        wait_until_ready(mps.rig)
        assert limits(mps) == ("25.0", ["3G", "3G"])  # 3840M, rounded down when printed
        before = mps.daemons()
        mps.rig.config(one_replica_each(20))
        eventually(lambda: limits(mps) == ("5.0", ["768M", "768M"]), "the new limits")
        assert mps.daemons() == before
        assert program.lines(Code.MPS_DEFAULT_REJECTED) == []


def test_a_daemon_that_is_killed_is_restarted_with_its_limits(mps: RealMps) -> None:
    with mps.served(one_replica_each(4)) as program:
        wait_until_ready(mps.rig)
        [killed] = mps.daemons()
        os.kill(killed, signal.SIGKILL)
        wait_until_gone(killed)
        program.wait_for_code(Code.MPS_STARTED, times=2)
        wait_until_ready(mps.rig)
        [daemon] = mps.daemons()
        assert daemon != killed
        assert limits(mps) == ("25.0", ["3G", "3G"])
        assert program.logged(Code.MPS_EXITED) == 1


def test_a_daemon_that_is_told_to_quit_is_restarted(mps: RealMps) -> None:
    with mps.served(quarters()) as program:
        wait_until_ready(mps.rig)
        [first] = mps.daemons()
        mps.command("quit")
        program.wait_for_code(Code.MPS_STARTED, times=2)
        wait_until_ready(mps.rig)
        assert mps.daemons() not in ([], [first])


def test_a_daemon_of_a_program_that_was_killed_is_adopted_with_new_limits(mps: RealMps) -> None:
    with mps.served(one_replica_each(4)) as killed:
        wait_until_ready(mps.rig)
        before = mps.daemons()
        killed.kill()
        with mps.served(one_replica_each(2), name="next") as program:
            program.wait_for_code(Code.MPS_ADOPTED)
            wait_until_ready(mps.rig)
            assert mps.daemons() == before
            assert limits(mps) == ("50.0", ["7G", "7G"])
            assert program.stop(PATIENCE) == 0
        assert mps.daemons() == []


def test_the_daemon_of_another_program_is_used_and_not_stopped(mps: RealMps) -> None:
    mps.start_foreign()
    before = mps.daemons()
    with mps.served(one_replica_each(4)) as program:
        wait_until_ready(mps.rig)
        assert program.logged(Code.MPS_FOREIGN) == 1
        assert program.stop(PATIENCE) == 0
    assert mps.daemons() == before
    assert limits(mps) == ("100.0", ["", ""])


def test_a_second_daemon_is_refused(mps: RealMps) -> None:
    with mps.served(quarters()):
        wait_until_ready(mps.rig)
        before = mps.daemons()
        done = subprocess.run(
            [mps.rig.node.bin / "nvidia-cuda-mps-control", "-d"],
            env={"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (
            1,
            "An instance of this daemon is already running\n",
        )
        assert mps.daemons() == before


def test_the_daemon_finds_its_server_by_path_for_every_user(mps: RealMps) -> None:
    """For a client of a user, the daemon becomes that user and then searches the program."""
    started = mps.rig.directory / "started"
    started.touch()
    started.chmod(0o666)
    mps.server.write_text(f"#!/bin/sh\nid -u >> {started}\n")
    with mps.served(quarters()):
        wait_until_ready(mps.rig)
        for user in (0, ALICE):
            assert mps.command(f"start_server -uid {user}") == ""
            # A multi-user server has the user of the daemon.
            expected = "0" if mps.multi_user else str(user)
            eventually(partial(last_word_is, started, expected), "the server")


def last_word_is(file: Path, word: str) -> bool:
    return file.read_text().split()[-1:] == [word]


def test_the_documented_command_of_the_driver_starts_a_daemon(mps: RealMps) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    row = "555 and newer" if mps.multi_user else "older"
    [command] = re.findall(rf"^ +\| {row} \| `(.+?)` \|", text, re.M)
    mps.start_foreign(command.split()[1:])
    assert len(mps.daemons()) == 1
    assert mps.command("get_default_active_thread_percentage") == "100.0"


def test_another_user_can_neither_quit_the_daemon_nor_start_a_server_of_root(
    mps: RealMps,
) -> None:
    with mps.served(one_replica_each(4)):
        wait_until_ready(mps.rig)
        before = mps.daemons()
        assert "Not enough privilege" in mps.command("quit", user=ALICE)
        assert "Insufficient privileges" in mps.command("start_server -uid 0", user=ALICE)
        assert mps.command("get_default_active_thread_percentage", user=ALICE) == "25.0"
        assert mps.daemons() == before


def test_replicas_are_healthy_while_their_daemon_runs(mps: RealMps) -> None:
    rig = mps.rig
    with mps.served(one_replica_each(4)) as program, advertised(rig, GPU):
        rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)))
        program.stop(PATIENCE)
        rig.wait_for_healthy(GPU, set())
        with mps.served(one_replica_each(4), name="next"):
            rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)))


def test_slices_are_healthy_while_a_daemon_runs_at_their_pipe_directory(mps: RealMps) -> None:
    rig = mps.rig
    mps.start_foreign()
    with rig.agent(f"--mps-pipe={mps.pipe}", ALL):
        rig.wait_for_limits(RESOURCE)
        [daemon] = mps.daemons()
        os.kill(daemon, signal.SIGKILL)  # its socket stays
        rig.wait_for_healthy(RESOURCE, set())
        wait_until_gone(daemon)
        mps.start_foreign()
        rig.wait_for_limits(RESOURCE)


def test_commands_of_several_programs_at_once_all_get_their_answers(mps: RealMps) -> None:
    """The daemon answers one control program at a time, and drops the others without an error."""
    mps.start_foreign()
    mps.command("set_default_device_pinned_mem_limit 0 14336M")
    mps.command("set_default_active_thread_percentage 50")

    async def ask(client: ControlClient) -> None:
        for _ in range(15):
            assert await client.default_threads_percent() == 50.0
            assert await client.command("get_default_device_pinned_mem_limit 0") == "14G"
            assert await client.servers() == []
            assert await client.command("set_default_active_thread_percentage 50") == "50.0"

    async def ask_at_once() -> None:
        await asyncio.gather(*(ask(ControlClient(str(mps.pipe), 20)) for _ in range(3)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(mps.rig.node.bin))
        asyncio.run(ask_at_once())


# Managed daemons of memory slices


def ceiling(mps: RealMps, uuid: str) -> tuple[str, str]:
    """The default limits of the daemon of a GPU: threads and memory."""
    pipe = mps.rig.mps_root / uuid / "pipe"
    threads = mps.command("get_default_active_thread_percentage", pipe=pipe)
    return threads, mps.command("get_default_device_pinned_mem_limit 0", pipe=pipe)


def test_each_gpu_with_slices_has_a_daemon_with_its_limits_from_start_to_stop(
    mps: RealMps,
) -> None:
    rig = mps.rig
    with node(rig, env=mps.env()) as program:
        before = running(rig.mps_root)
        assert sorted(before) == sorted(uuids(rig))
        for uuid, pid in before.items():
            assert gpus_of(pid) == [uuid]
            assert ceiling(mps, uuid) == ("100.0", "14G")
        one, other = uuids(rig)
        os.kill(before[one], signal.SIGKILL)
        wait_until_gone(before[one])
        program.wait_for_code(Code.MPS_STARTED, f"daemon={one}", times=2)
        wait_until_all_healthy(rig)
        assert ceiling(mps, one) == ("100.0", "14G")
        assert running(rig.mps_root)[other] == before[other]
        assert program.logged(Code.MPS_DEFAULT_REJECTED) == 0
        assert program.logged(Code.MPS_ONE_USER_AT_A_TIME, RESOURCE) == (not mps.multi_user)
        assert program.stop(PATIENCE) == 0
        rig.wait_for_healthy(RESOURCE, set())
    assert running(rig.mps_root) == {}
    assert compute_modes(rig) == [DEFAULT] * 2


def test_daemons_of_slices_are_adopted_after_the_program_was_killed(mps: RealMps) -> None:
    rig = mps.rig
    rig.config(MANAGED)
    with served(rig, env=mps.env()) as killed:
        wait_until_ready(rig)
        before = running(rig.mps_root)
        killed.kill()
        with served(rig, env=mps.env()) as program:
            program.wait_for_code(Code.MPS_ADOPTED, times=2)
            wait_until_ready(rig)
            assert running(rig.mps_root) == before
            for uuid in uuids(rig):
                assert ceiling(mps, uuid) == ("100.0", "14G")
    assert running(rig.mps_root) == {}
