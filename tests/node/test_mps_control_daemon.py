"""`mps-control-daemon` and the agent: each resource that is shared by MPS has its daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.mps.launch import MpsDaemon, is_running, kill, running_process, wait_until_gone
from gpuslice_sim.mps.simcuda import HeldClient, Outcome, run_client
from gpuslice_sim.process import BackgroundProcess

from .conftest import MakeRig
from .rig import BIN, GPU, Rig, needs_root

MIB = 1 << 20
SHARED = "nvidia.com/gpu.shared"
DEFAULT, EXCLUSIVE_PROCESS = 0, 3
PATIENCE = 40.0
# In a script: the program that the script replaces.
REAL = "REAL_PROGRAM"

pytestmark = needs_root


def quarters(*, name: str = "gpu", more: str = "") -> str:
    return (
        "sharing: {mps: {failRequestsGreaterThanOne: false, "
        f"resources: [{{name: {name}, replicas: 4{more}}}]}}}}"
    )


def one_replica_each(replicas: int) -> str:
    """The default of MPS: a container gets one replica."""
    return f"sharing: {{mps: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}"


@pytest.fixture(autouse=True)
def no_daemon_stays(short_path: Path) -> Iterator[None]:
    """Daemons have no parent here, and would outlive a test that failed."""
    yield
    for pid in running(short_path / "m").values():
        kill(pid)


@contextmanager
def served(
    rig: Rig, text: str, *args: str, env: Mapping[str, str] | None = None, name: str = "mps"
) -> Iterator[BackgroundProcess]:
    """Runs our program with the host's MPS root at /mps, like its pod."""
    argv = [str(BIN / "mps-control-daemon"), rig.config(text), *args]
    with rig.run(argv, name=name, env=env, places={"/mps": rig.mps_root}) as program:
        try:
            yield program
        finally:
            if program.returncode is None:
                program.stop(PATIENCE)


@contextmanager
def advertised(rig: Rig, *resources: str) -> Iterator[BackgroundProcess]:
    flags = (f"--mps-root={rig.mps_root}", f"--config-file={rig.directory / 'config.yaml'}")
    with rig.plugin(*flags, places={"/mps": rig.mps_root}) as plugin:
        for resource in resources:
            rig.kubelet.wait_for(resource)
            rig.wait_for_healthy(resource, set(rig.kubelet.devices(resource)), PATIENCE)
        yield plugin


def eventually(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)


def wait_until_ready(rig: Rig) -> None:
    eventually(lambda: (rig.mps_root / ".ready").exists(), ".ready")


def daemons(rig: Rig) -> dict[str, int]:
    """Resource -> process id of its daemon, if it runs."""
    return running(rig.mps_root)


def running(root: Path) -> dict[str, int]:
    found = {}
    for file in root.glob("*/*/pipe/nvidia-cuda-mps-control.pid"):
        if (pid := running_process(file)) is not None:
            found[str(file.parent.parent.relative_to(root))] = pid
    return found


def gpus_of(pid: int | None) -> list[str]:
    """The GPUs of a daemon; none if it has exited."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return []
    named = [v.partition("=")[2] for v in variables if v.startswith("CUDA_VISIBLE_DEVICES=")]
    return [uuid for uuids in named for uuid in uuids.split(",")]


def children(pid: int) -> dict[int, str]:
    """Process id -> name, including zombies."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        if int(rest.split()[1]) == pid:
            found[int(stat.parent.name)] = head.partition("(")[2]
    return found


def compute_modes(rig: Rig) -> list[int]:
    return [gpu.compute_mode for gpu in rig.node.gpus()]


def admitted(rig: Rig, resource: str, count: int, name: str) -> tuple[Pod, str]:
    pod = Pod(name, [Container("main", {resource: count})])
    [allocation] = rig.kubelet.admit(pod)
    return pod, allocation.ids[0].partition("::")[0]


def replaced(program: Path, script: str) -> Path:
    """Replaces the program by a script. Returns the new path of the program."""
    real = program.with_name(f"{program.name}.real")
    program.rename(real)
    put_in_place(program, f"#!/bin/sh\n{script.replace(REAL, str(real))}\n")
    return real


def put_in_place(program: Path, text: str) -> None:
    fresh = program.with_name(f"{program.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.rename(program)


def bare(rig: Rig, gpu: int = 0, *args: str) -> Outcome:
    """A CUDA program that has removed its limits."""
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": str(rig.mps_root / GPU / "pipe"),
        "CUDA_VISIBLE_DEVICES": rig.node.gpus()[gpu].uuid,
    }
    return run_client(rig.node.bin / "simcuda", *(args or ("info",)), env=env)


def has_limit(rig: Rig, limit_bytes: int) -> bool:
    return bool(bare(rig, 1).device["limit_bytes"] == limit_bytes)


def client(rig: Rig, user: int | None = None) -> HeldClient:
    """A CUDA program on the node that keeps its context until it is stopped."""
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(rig.mps_root / GPU / "pipe")}
    return HeldClient(rig.node.bin / "simcuda", env=env, user=user)


# What containers get


@pytest.mark.parametrize("driver", [535, 570], ids=["ordinal-keys", "uuid-keys"])
def test_merged_replicas_are_one_larger_share(make_rig: MakeRig, driver: int) -> None:
    rig = make_rig("t4x2", driver=driver)
    with served(rig, quarters()), advertised(rig, GPU):
        for count, memory_mib, sms in ((1, 3840, 10), (2, 7680, 20), (4, 15360, 40)):
            for gpu in rig.node.gpus():
                answer = rig.allocate(GPU, *(f"{gpu.uuid}::{n}" for n in range(count)))
                filled = rig.contained(answer, "fill")
                [device] = filled["devices"]
                assert filled["warnings"] == []
                assert (device["uuid"], device["limit_bytes"]) == (gpu.uuid, memory_mib * MIB)
                assert device["sms"] == sms
                assert filled["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
                if count < 4:  # the server uses some memory of a whole GPU
                    assert filled["total_bytes"] == memory_mib * MIB


def test_clients_of_several_users_are_served_at_once(rig: Rig) -> None:
    with served(rig, quarters()), advertised(rig, GPU):
        rig.directory.chmod(0o755)
        with client(rig, user=1000) as one, client(rig, user=2000) as other:
            assert one.ready()["mps"]
            assert other.ready()["mps"]


def test_each_resource_has_its_own_daemon(make_rig: MakeRig) -> None:
    rig = make_rig("mixed")
    models = {gpu.name: gpu.uuid for gpu in rig.node.gpus()}
    one, other = list(models)[:2]
    text = f"""
resources:
  gpus:
    - {{pattern: "{one}", name: one}}
sharing:
  mps:
    failRequestsGreaterThanOne: false
    resources:
      - {{name: one, replicas: 4, rename: one.limited}}
      - {{name: gpu, devices: ["{models[other]}"], replicas: 2, rename: gpu.mine}}
"""
    limited, mine = "nvidia.com/one.limited", "nvidia.com/gpu.mine"
    with served(rig, text), advertised(rig, limited, mine):
        running = daemons(rig)
        assert sorted(running) == sorted([limited, mine])
        assert gpus_of(running[mine]) == [models[other]]
        for resource, share in ((limited, 4), (mine, 2)):
            pod, uuid = admitted(rig, resource, 1, resource.rpartition(".")[2])
            [device] = rig.contained(rig.kubelet.start_container(pod, "main"), "info")["devices"]
            whole = rig.node.gpu(uuid).memory_total_bytes // MIB
            assert device["limit_bytes"] == whole // share * MIB


def test_gpus_that_are_not_shared_are_not_changed(rig: Rig) -> None:
    with served(rig, quarters(more=", devices: [0]")):
        wait_until_ready(rig)
        assert gpus_of(daemons(rig)[GPU]) == [rig.node.gpus()[0].uuid]
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS, DEFAULT]


def test_without_the_program_the_agent_names_it_and_the_pipe_directory(rig: Rig) -> None:
    flags = (f"--mps-root={rig.mps_root}", rig.config(quarters()))
    with rig.plugin(*flags, places={"/mps": rig.mps_root}) as plugin:
        rig.kubelet.wait_for(GPU)
        [line] = plugin.wait_for_code(Code.MPS_UNAVAILABLE)
        assert "run mps-control-daemon on this node" in line
        assert f"<mps-root>/{GPU}/pipe on the host" in line


# Files and environment that charts and other programs rely on


def test_files_have_the_names_that_other_programs_expect_and_are_removed_at_the_end(
    rig: Rig,
) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        place = rig.mps_root / GPU
        uuids = [gpu.uuid for gpu in rig.node.gpus()]
        assert (place / ".started").read_text().split() == uuids
        assert (place / "pipe" / "control").is_socket()
        assert (place / "log" / "control.log").exists()
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2
        daemon = daemons(rig)[GPU]
        variables = Path(f"/proc/{daemon}/environ").read_bytes().decode().split("\0")
        given = {v.partition("=")[0] for v in variables if v} - {"GPUSLICE_SIM_NODE", "PWD"}
        assert given >= {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
        assert not given & {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "KUBELET_SOCKET", "PATH"}

        assert program.stop(PATIENCE) == 0
        assert not is_running(daemon)
        assert compute_modes(rig) == [DEFAULT] * 2
        assert not (rig.mps_root / ".ready").exists()
        assert not (place / ".started").exists()
        assert "Traceback" not in program.output()


@pytest.mark.parametrize("driver", [535, 570])
def test_a_client_that_removes_its_limits_is_limited_to_one_replica(
    make_rig: MakeRig, driver: int
) -> None:
    rig = make_rig("mixed", driver=driver)
    text = one_replica_each(4).replace("resources", "reserve: 1Gi, resources", 1)
    with served(rig, text), advertised(rig, GPU):
        visible = gpus_of(daemons(rig)[GPU])
        assert len({rig.node.gpu(uuid).memory_total_bytes for uuid in visible}) > 1
        for index, gpu in enumerate(rig.node.gpus()):
            if gpu.uuid not in visible:
                continue
            # Exactly what a container with its own limits has.
            answer = rig.allocate(GPU, f"{gpu.uuid}::0")
            [limited] = rig.contained(answer, "info")["devices"]
            device = bare(rig, index).device
            assert device["limit_bytes"] == (gpu.memory_total_bytes // MIB - 1024) // 4 * MIB
            assert device["limit_bytes"] == limited["limit_bytes"]
            assert device["sms"] == limited["sms"]
        killed = daemons(rig)[GPU]
        os.kill(killed, signal.SIGKILL)
        wait_until_gone(killed)
        eventually(lambda: daemons(rig).get(GPU, killed) != killed, "a new daemon")
        wait_until_ready(rig)
        assert bare(rig).device["limit_bytes"] is not None


def test_the_defaults_of_a_running_daemon_follow_the_size_of_a_replica(rig: Rig) -> None:
    with served(rig, one_replica_each(4)):
        wait_until_ready(rig)
        before = daemons(rig)
        with client(rig) as held:
            held.ready()
            for text, memory_mib, sms in (
                (one_replica_each(2), 7680, 20),
                (one_replica_each(3), 5120, 12),
                (quarters(), 15360, 40),
            ):
                rig.config(text)
                limit = memory_mib * MIB
                eventually(partial(has_limit, rig, limit), text)
                assert bare(rig, 1).device["sms"] == sms
            assert is_running(held.pid)
        assert daemons(rig) == before


def test_if_replicas_can_be_merged_the_daemon_has_no_default_limits(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        assert program.stop(PATIENCE) == 0
    record = rig.node.directory / "state" / "mps" / "commands.log"
    commands = {line.split("\t")[2].split()[0] for line in record.read_text().splitlines()}
    assert commands == {"get_default_active_thread_percentage", "quit"}


def test_shared_memory_is_mounted_once_and_stays_mounted(rig: Rig) -> None:
    command = f"{BIN / 'mps-control-daemon'} mount-shm"
    script = f"""
        {command} && touch /mps/shm/in-use && {command} && ls /mps/shm &&
        df -k --output=size /mps/shm | tail -1 && grep /mps/shm /proc/self/mountinfo
    """
    argv = ["sh", "-c", script]
    done = subprocess.run(
        rig.node.namespace_command(argv, {"/mps": rig.mps_root}),
        env=rig.env(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listing, size_kib, mount = done.stdout.splitlines()
    assert listing == "in-use"
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert abs(int(size_kib) - memory_kib // 2) <= 4  # whole pages
    assert " - tmpfs shm " in mount
    assert all(option in mount for option in ("nosuid", "nodev", "noexec"))
    assert "already mounted" in done.stderr


# Failures


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
        assert program.logged(Code.MPS_EXITED, f"resource={one}") == 1
        rig.wait_for_healthy(one, set(rig.kubelet.devices(one)), PATIENCE)


@pytest.mark.parametrize("how", ["exit 127", "kill -9 $$"], ids=["libraries", "memory"])
def test_a_probe_that_cannot_run_stops_no_daemon(rig: Rig, how: str) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        with client(rig) as held:
            held.ready()
            control = rig.node.bin / "nvidia-cuda-mps-control"
            real = replaced(control, how)
            program.wait_for_code(Code.MPS_UNAVAILABLE, "cannot probe")
            time.sleep(15)  # five more probes
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
        time.sleep(6)  # longer than a daemon may take to exit
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
[ -e {waits} ] && {{ rm {waits}; sleep 8; }}
exec {REAL} "$@"
"""
    replaced(rig.node.bin / "nvidia-cuda-mps-control", script)
    with served(rig, quarters()) as program:
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
    with served(rig, quarters()) as program:
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
        [line] = program.wait_for_code(Code.MPS_UNAVAILABLE)
        assert "-c EXCLUSIVE_PROCESS` failed (Insufficient Permissions)" in line
        assert "privileged" in line
        assert daemons(rig) == {}
        assert not (rig.mps_root / ".ready").exists()
        smi.write_text(good)
        wait_until_ready(rig)
        assert GPU in daemons(rig)


def test_a_program_that_never_became_ready_stops_without_an_error(rig: Rig) -> None:
    (rig.node.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 4\n")
    with served(rig, quarters()) as program:
        program.wait_for_code(Code.MPS_UNAVAILABLE)
        assert program.stop(PATIENCE) == 0
        assert "Traceback" not in program.output()


def test_a_daemon_that_does_not_answer_for_a_while_is_not_restarted(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        os.kill(before[GPU], signal.SIGSTOP)
        program.wait_for_code(Code.MPS_UNAVAILABLE, "does not answer")
        assert not (rig.mps_root / ".ready").exists()
        os.kill(before[GPU], signal.SIGCONT)
        wait_until_ready(rig)
        assert daemons(rig) == before


def test_the_ready_file_is_removed_before_a_daemon_that_hangs_is_stopped(rig: Rig) -> None:
    with served(rig, quarters()) as program:
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
        time.sleep(2)
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


# Settings


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
        time.sleep(11)  # one more scan
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
