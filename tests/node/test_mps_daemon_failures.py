"""MPS daemons that die, hang or cannot start, and drivers that do not answer."""

from __future__ import annotations

import os
import signal

import pytest

from gpuslice.codes import Code
from gpuslice_sim.mps.launch import is_running, wait_until_gone
from tests.timing import timing

from .conftest import MakeRig
from .mps_programs import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    PATIENCE,
    REAL,
    advertised,
    children,
    client,
    compute_modes,
    counted,
    daemons,
    put_in_place,
    quarters,
    replaced,
    served,
    wait_until_ready,
)
from .rig import BIN, GPU, Rig, eventually, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]


def test_a_daemon_that_dies_is_restarted_and_the_others_continue(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    text = """
sharing:
  mps:
    resources:
      - {name: gpu, devices: [0], replicas: 2, rename: one}
      - {name: gpu, devices: [1], replicas: 2, rename: two}
"""
    one, two = "nvidia.com/one", "nvidia.com/two"
    with served(rig, text) as program, advertised(rig, one, two):
        before = daemons(rig)
        os.kill(before[one], signal.SIGKILL)
        wait_until_gone(before[one])
        eventually(lambda: daemons(rig).get(one, before[one]) != before[one], "a new daemon")
        wait_until_ready(rig)
        assert daemons(rig)[two] == before[two]
        assert program.logged(Code.MPS_EXITED, f"daemon={one}") == 1
        rig.wait_for_healthy(one, set(rig.kubelet.devices(one)), PATIENCE)


@pytest.mark.parametrize("how", ["exit 127", "kill -9 $$"], ids=["libraries", "memory"])
def test_a_probe_that_cannot_run_stops_no_daemon(rig: Rig, how: str) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        with client(rig) as held:
            held.ready()
            control = rig.node.bin / "nvidia-cuda-mps-control"
            real, probes = counted(control, how)
            program.wait_for_code(Code.MPS_UNAVAILABLE, "cannot probe")
            eventually(lambda: probes() > 5, "more probes than a daemon that hangs may miss")
            real.rename(control)
            assert daemons(rig) == before
            assert is_running(held.pid)
            assert (rig.mps_root / ".ready").exists()
            assert program.logged(Code.MPS_STARTED) == 1
            assert program.stop(PATIENCE) == 0


def test_a_daemon_whose_probe_fails_once_continues_to_run(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        control = rig.node.bin / "nvidia-cuda-mps-control"
        real = replaced(control, "echo Cannot find MPS control daemon process; exit 1")
        program.wait_for_code(Code.MPS_UNAVAILABLE, "does not answer")
        real.rename(control)
        wait_until_ready(rig)
        _, probes = counted(control, f'exec {REAL} "$@"')
        eventually(lambda: probes() > 5, "more probes")
        assert daemons(rig) == before
        assert program.logged(Code.MPS_EXITED) == 0


def test_a_control_program_that_is_missing_for_a_while_stops_no_daemon(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        control = rig.node.bin / "nvidia-cuda-mps-control"
        away = control.rename(control.with_name("away"))
        program.wait_for_code(Code.MPS_UNAVAILABLE, "cannot probe")
        away.rename(control)
        assert program.logged(Code.MPS_STARTED) == 1
        assert daemons(rig) == before


def test_a_daemon_that_answers_late_after_its_start_is_still_ours(rig: Rig) -> None:
    waits = rig.directory / "waits"
    # Once, and longer than a probe may take.
    script = f"""
[ "$1" = -d ] && {{ : > {waits}; exec {REAL} "$@"; }}
[ -e {waits} ] && {{ rm {waits}; sleep 4; }}
exec {REAL} "$@"
"""
    replaced(rig.node.bin / "nvidia-cuda-mps-control", script)
    with served(rig, quarters(), env=timing(mps_command=2)) as program:
        program.wait_for_code(Code.MPS_UNAVAILABLE, "did not answer")
        wait_until_ready(rig)
        assert (rig.mps_root / GPU / ".started").exists()
        assert program.logged(Code.MPS_FOREIGN) == 0
        assert program.stop(PATIENCE) == 0
        assert daemons(rig) == {}
        assert compute_modes(rig) == [DEFAULT] * 2


def test_a_daemon_that_cannot_start_leaves_no_marker(rig: Rig) -> None:
    control = rig.node.bin / "nvidia-cuda-mps-control"
    real = replaced(control, f'[ "$1" = -d ] && exit 3; exec {REAL} "$@"')
    with served(rig, quarters()) as program:
        program.wait_for_code(Code.MPS_UNAVAILABLE, "-d -multiuser-server` failed")
        eventually(lambda: not (rig.mps_root / GPU / ".started").exists(), "no marker")
        real.rename(control)
        wait_until_ready(rig)
        assert (rig.mps_root / GPU / ".started").exists()


def test_a_daemon_that_quits_leaves_no_zombie_to_the_first_process_of_a_container(
    rig: Rig,
) -> None:
    argv = ["unshare", "-p", "-f", "--kill-child", "--mount-proc", str(BIN / "mps-control-daemon")]
    places = {"/mps": rig.mps_root}
    with rig.run([*argv, rig.config(quarters())], name="mps", places=places) as unshare:
        wait_until_ready(rig)
        [program] = children(unshare.pid)
        eventually(lambda: "nvidia-cuda-mps" in children(program).values(), "the daemon", 5)
        rig.config("version: v1")
        unshare.wait_for_code(Code.MPS_STOPPED)
        assert "nvidia-cuda-mps" not in children(program).values()


def test_sigterm_while_a_daemon_is_stopped_leaves_nothing_behind(rig: Rig) -> None:
    with served(rig, quarters(), env=timing(mps_quit=1, mps_exit=1)) as program:
        wait_until_ready(rig)
        os.kill(daemons(rig)[GPU], signal.SIGSTOP)
        rig.config("version: v1")
        eventually(lambda: not (rig.mps_root / ".ready").exists(), "the stop to begin")
        assert program.stop(PATIENCE) == 0
        assert daemons(rig) == {}
        assert compute_modes(rig) == [DEFAULT] * 2
        assert "Traceback" not in program.output()


def test_a_marker_that_cannot_be_removed_does_not_prevent_the_stop(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        marker = rig.mps_root / GPU / ".started"
        marker.unlink()
        marker.mkdir()
        assert program.stop(PATIENCE) == 0
        assert program.logged(Code.MARKER_NOT_WRITTEN, f"file=/mps/{GPU}/.started") == 1
        assert compute_modes(rig) == [DEFAULT] * 2


def test_sigterm_while_a_compute_mode_is_set_restores_it(rig: Rig) -> None:
    script = f'{REAL} "$@"; case "$*" in *EXCLUSIVE*) sleep 50;; esac'
    replaced(rig.node.bin / "nvidia-smi", script)
    with served(rig, quarters()) as program:
        # Both at once, although neither command ends.
        eventually(lambda: compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2, "exclusive")
        assert program.stop(PATIENCE) == 0
        assert compute_modes(rig) == [DEFAULT] * 2


def test_a_broken_nvidia_smi_is_named_and_retried(rig: Rig) -> None:
    smi = rig.node.bin / "nvidia-smi"
    good = smi.read_text()
    smi.write_text("#!/bin/sh\necho Insufficient Permissions\nexit 4\n")
    with served(rig, quarters()) as program:
        [line] = program.wait_for_code(
            Code.MPS_UNAVAILABLE, r"-c EXCLUSIVE_PROCESS` failed \(Insufficient Permissions\)"
        )
        assert "privileged" in line
        assert daemons(rig) == {}
        assert not (rig.mps_root / ".ready").exists()
        put_in_place(smi, good)
        wait_until_ready(rig)
        assert GPU in daemons(rig)


def test_a_program_that_never_became_ready_stops_without_an_error(rig: Rig) -> None:
    (rig.node.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 4\n")
    with served(rig, quarters()) as program:
        program.wait_for_code(Code.MPS_UNAVAILABLE)
        assert program.stop(PATIENCE) == 0
        assert "Traceback" not in program.output()


def test_a_daemon_that_does_not_answer_for_a_while_is_not_restarted(rig: Rig) -> None:
    with served(rig, quarters(), env=timing(mps_command=2)) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        os.kill(before[GPU], signal.SIGSTOP)
        program.wait_for_code(Code.MPS_UNAVAILABLE, "does not answer")
        assert not (rig.mps_root / ".ready").exists()
        os.kill(before[GPU], signal.SIGCONT)
        wait_until_ready(rig)
        assert daemons(rig) == before


def test_the_ready_file_is_removed_before_a_daemon_that_hangs_is_stopped(rig: Rig) -> None:
    with served(rig, quarters(), env=timing(mps_quit=1, mps_exit=1)) as program:
        wait_until_ready(rig)
        os.kill(daemons(rig)[GPU], signal.SIGSTOP)
        program.send(signal.SIGTERM)
        eventually(lambda: not (rig.mps_root / ".ready").exists(), "no .ready", 5)
        assert GPU in daemons(rig)
        assert program.wait(PATIENCE) == 0
        assert daemons(rig) == {}
        assert compute_modes(rig) == [DEFAULT] * 2


def test_a_missing_control_program_is_named(rig: Rig) -> None:
    (rig.node.bin / "nvidia-cuda-mps-control").unlink()
    with served(rig, quarters()) as program:
        [line] = program.wait_for_code(
            Code.MPS_UNAVAILABLE, "nvidia-cuda-mps-control is not on PATH"
        )
        assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in line


def test_a_lost_gpu_does_not_stop_the_daemon_of_the_others(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        rig.node.faults.lost(1)
        program.send(signal.SIGHUP)
        program.wait_for_code(Code.GPU_SKIPPED, "GPU 1: it does not answer")
        program.wait_for_code(Code.RECONCILED)
        assert daemons(rig) == before
        rig.node.faults.restore(1)


def test_a_gpu_that_returns_is_exclusive_again(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        rig.node.faults.lost(1)
        program.send(signal.SIGHUP)
        program.wait_for_code(Code.GPU_SKIPPED, "GPU 1: it does not answer")
        rig.node.faults.restore(1)
        rig.node.set({"gpu.1.compute_mode": DEFAULT})
        program.send(signal.SIGHUP)
        eventually(lambda: compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2, "exclusive")
        assert daemons(rig) == before
