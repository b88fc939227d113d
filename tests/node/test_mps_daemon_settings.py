"""Settings that change, and MPS daemons that run already."""

from __future__ import annotations

import signal
import time

import pytest

from gpuslice.codes import Code
from gpuslice_sim.mps.launch import MpsDaemon, is_running

from .conftest import MakeRig
from .mps_programs import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    MIB,
    PATIENCE,
    REAL,
    SHARED,
    bare,
    client,
    compute_modes,
    daemons,
    gpus_of,
    one_replica_each,
    quarters,
    replaced,
    served,
    wait_until_ready,
)
from .rig import BIN, GPU, Rig, eventually, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]


def test_only_daemons_whose_gpus_change_are_restarted(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")

    def text(replicas: int, devices: str) -> str:
        return f"""
sharing:
  mps:
    resources:
      - {{name: gpu, devices: [0], replicas: {replicas}, rename: one}}
      - {{name: gpu, devices: {devices}, replicas: 2, rename: two}}
"""

    one, two, uuids = "nvidia.com/one", "nvidia.com/two", [g.uuid for g in rig.node.gpus()]
    with served(rig, text(2, "[1]")) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        rig.config(text(3, "[1, 2]"))
        eventually(lambda: gpus_of(daemons(rig).get(two)) == uuids[1:3], "GPU 2 too")
        wait_until_ready(rig)
        assert daemons(rig)[one] == before[one]
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 3 + [DEFAULT]
        rig.config(text(3, "[2]"))
        program.send(signal.SIGHUP)
        eventually(lambda: gpus_of(daemons(rig).get(two)) == [uuids[2]], "GPU 1 free")
        wait_until_ready(rig)
        assert daemons(rig)[one] == before[one]
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS, DEFAULT, EXCLUSIVE_PROCESS, DEFAULT]


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("sharing: {mps: {resources: [{name: gpu, replicas: 0}]}}", "replicas"),
        (quarters().replace("4", "400"), "MPS serves 48 clients"),
    ],
    ids=["wrong", "wrong-for-this-node"],
)
def test_invalid_settings_leave_the_daemons_running(rig: Rig, text: str, because: str) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        rig.config(text)
        [line] = program.wait_for_code(Code.CONFIGURATION_INVALID)
        assert because in line
        assert daemons(rig) == before
        assert program.logged(Code.SETTINGS_APPLIED) == 1
        # The last good settings continue to follow the hardware.
        new = rig.node.faults.add_gpu("t4").uuid
        eventually(lambda: new in gpus_of(daemons(rig).get(GPU)), "the new GPU too")
        time.sleep(1)  # some more scans
        assert program.logged(Code.HARDWARE_CHANGED) == 1
        assert program.logged(Code.CONFIGURATION_INVALID) == 1
        assert program.logged(Code.SETTINGS_APPLIED) == 1
        rig.config(quarters(more=", rename: gpu.shared"))
        eventually(lambda: list(daemons(rig)) == [SHARED], "the new name")


def test_a_node_that_shares_nothing_by_mps_waits_until_it_does(rig: Rig) -> None:
    with served(rig, "version: v1") as program:
        program.wait_for_code(Code.NOTHING_TO_RUN)
        wait_until_ready(rig)
        assert compute_modes(rig) == [DEFAULT] * 2
        rig.config(quarters())
        eventually(lambda: GPU in daemons(rig), "a daemon")
        rig.config("version: v1")
        eventually(lambda: not daemons(rig), "no daemon")
        eventually(lambda: compute_modes(rig) == [DEFAULT] * 2, "default compute modes")
        assert program.stop(PATIENCE) == 0


def test_the_configuration_is_selected_like_that_of_the_agent(rig: Rig) -> None:
    configs = rig.directory / "configs"
    configs.mkdir()
    (configs / "default").write_text(quarters(more=", rename: gpu.shared"))
    (configs / "other").write_text("version: v1")
    env = {"CONFIG_FILE_SRCDIR": str(configs), "FALLBACK_STRATEGIES": "named,single"}
    argv, places = [str(BIN / "mps-control-daemon")], {"/mps": rig.mps_root}
    with rig.run(argv, name="mps", env=env, places=places) as program:
        program.wait_for_code(Code.MPS_STARTED)
        assert list(daemons(rig)) == [SHARED]
        (configs / "default").write_text(quarters())
        eventually(lambda: list(daemons(rig)) == [GPU], "the edited name")
        assert program.stop(PATIENCE) == 0


def test_invalid_settings_at_the_start_are_an_error_without_a_traceback(rig: Rig) -> None:
    with served(rig, "sharing: {mps: {resources: []}}") as program:
        assert program.wait(PATIENCE) == 1
        assert "Traceback" not in program.output()
        assert "resources" in program.output()


def test_an_error_names_the_key_and_the_file(rig: Rig) -> None:
    with served(rig, "flags: {mpsRoot: mps}") as program:
        assert program.wait(PATIENCE) == 1
        assert "flags.mpsRoot: 'mps' is not valid" in program.output()
        assert "config.yaml" in program.output()


# Daemons that run already


def test_after_a_crash_the_daemon_is_adopted_with_its_clients(rig: Rig) -> None:
    with served(rig, quarters(), name="first") as first:
        wait_until_ready(rig)
        before = daemons(rig)
        with client(rig) as held:
            held.ready()
            first.kill()
            with served(rig, quarters(), name="second") as second:
                second.wait_for_code(Code.MPS_ADOPTED)
                wait_until_ready(rig)
                assert daemons(rig) == before
                assert is_running(held.pid)
                assert held.stop() == 0
                assert second.stop(PATIENCE) == 0
                assert daemons(rig) == {}
                assert compute_modes(rig) == [DEFAULT] * 2


def test_an_adopted_daemon_is_updated(rig: Rig) -> None:
    with served(rig, one_replica_each(4), name="first") as first:
        wait_until_ready(rig)
        before = daemons(rig)
        first.kill()
        rig.node.set({"gpu.0.compute_mode": DEFAULT})
        marker = rig.mps_root / GPU / ".started"
        # In the order of other settings.
        marker.write_text("\n".join(reversed(marker.read_text().split())))
        with served(rig, one_replica_each(2), name="second") as second:
            second.wait_for_code(Code.MPS_ADOPTED)
            assert daemons(rig) == before
            assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2
            assert bare(rig).device["limit_bytes"] == 7680 * MIB


def test_a_daemon_is_adopted_even_if_one_of_its_gpus_is_lost(rig: Rig) -> None:
    with served(rig, quarters(), name="first") as first:
        wait_until_ready(rig)
        before = daemons(rig)
        first.kill()
        rig.node.faults.lost(1)
        with served(rig, quarters(), name="second") as second:
            second.wait_for_code(Code.MPS_ADOPTED)
            assert daemons(rig) == before
            rig.node.faults.restore(1)


def test_a_daemon_for_other_gpus_is_replaced(rig: Rig) -> None:
    with served(rig, quarters(more=", devices: [0]"), name="first") as first:
        wait_until_ready(rig)
        before = daemons(rig)
        first.kill()
        with served(rig, quarters(), name="second") as second:
            second.wait_for_code(Code.MPS_STARTED)
            assert daemons(rig)[GPU] != before[GPU]
            assert gpus_of(daemons(rig)[GPU]) == [gpu.uuid for gpu in rig.node.gpus()]


def test_a_daemon_of_the_host_is_used_and_not_stopped(rig: Rig) -> None:
    daemon: MpsDaemon = rig.mps_daemon(GPU)
    with daemon:
        daemon.command("set_default_active_thread_percentage 25")
        with served(rig, quarters()) as program:
            [found, capped] = program.wait_for_code(Code.MPS_FOREIGN, times=2)
            assert "leaving it alone" in found
            assert "threads_percent=25" in capped
            assert program.stop(PATIENCE) == 0
        assert is_running(daemon.pid)
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2


@pytest.mark.parametrize(
    "ignored",
    [
        "set_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit",
        "set_active_thread_percentage",
        "set_device_pinned_mem_limit",
    ],
)
def test_a_limit_that_the_daemon_ignores_is_reported(rig: Rig, ignored: str) -> None:
    """The control program exits with 0 also for commands that had no effect."""
    with served(rig, one_replica_each(4)) as program:
        wait_until_ready(rig)
        with client(rig) as held:
            held.ready()  # so that there is a server
            script = f"""
[ $# = 0 ] || exec {REAL} "$@"
line=$(cat)
case "$line" in "{ignored} "*) line=${{line#*
}};; esac
echo "$line" | {REAL}
"""
            replaced(rig.node.bin / "nvidia-cuda-mps-control", script)
            rig.config(one_replica_each(8))
            [line, *_] = program.wait_for_code(Code.MPS_DEFAULT_REJECTED, ignored)
            assert "it is" in line
            assert program.logged(Code.MPS_DEFAULT_REJECTED) == program.logged(
                Code.MPS_DEFAULT_REJECTED, ignored
            )
