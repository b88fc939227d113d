"""A container with a replica can write the pipe directory and the shared memory of its daemon."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.files.untrusted import remove_impostors
from gpuslice_sim.mps.launch import wait_until_gone
from tests.timing import timing
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes

from .mps_programs import (
    PATIENCE,
    REAL,
    advertised,
    bare,
    children,
    client,
    counted,
    daemons,
    one_replica_each,
    put_in_place,
    quarters,
    replaced,
    served,
    wait_until_ready,
)
from .rig import BIN, GPU, RESOURCE, Rig, eventually, needs_root
from .test_node_config import configs, kubernetes

__all__ = ["configs", "kubernetes"]

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]

MIB = 1 << 20
PID_FILE = "nvidia-cuda-mps-control.pid"


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


IMPOSTORS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a link to an endless file": lambda path: path.symlink_to("/dev/zero"),
    "a huge file": _huge,
    "a directory": lambda path: (path / "full").mkdir(parents=True),
}


def _replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    IMPOSTORS[kind](path)


def memory_mib(pid: int) -> int:
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB
    )


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_nothing_in_place_of_the_pid_file_stops_the_program(rig: Rig, kind: str) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        daemon = daemons(rig)[GPU]
        pid_file = rig.mps_root / GPU / "pipe" / PID_FILE
        _replace(pid_file, kind)
        os.kill(daemon, signal.SIGKILL)
        program.wait_for_code(Code.MPS_EXITED)
        eventually(lambda: program.logged(Code.MPS_STARTED) == 2, "a new daemon")
        wait_until_ready(rig)
        new = daemons(rig)[GPU]
        _replace(pid_file, kind)
        assert memory_mib(program.pid) < 500
        # The program stops the daemon without the file.
        status = program.stop(PATIENCE)
        remove_impostors(pid_file.parent, {PID_FILE: lambda mode: False})
        assert status == 0
        wait_until_gone(new)


@pytest.mark.parametrize("name", ["control", "control_privileged", "control_lock", "log"])
def test_a_directory_in_place_of_any_file_of_the_daemon_does_not_keep_it_down(
    rig: Rig, name: str
) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        daemon = daemons(rig)[GPU]
        path = rig.mps_root / GPU / "pipe" / name
        path.unlink(missing_ok=True)
        (path / "full").mkdir(parents=True)
        os.kill(daemon, signal.SIGKILL)
        wait_until_gone(daemon)
        eventually(
            lambda: (
                program.logged(Code.MPS_FILES_REMOVED, f"removed={name}")
                or program.logged(Code.MPS_SOCKETS_RESTORED, f"sockets={name}")
            ),
            "the directory is removed",
        )
        eventually(lambda: daemons(rig).get(GPU, daemon) != daemon, "a new daemon", PATIENCE)
        wait_until_ready(rig)


def test_the_daemon_follows_no_links_in_its_pipe_directory(rig: Rig) -> None:
    victim = rig.directory / "victim"
    victim.write_text("precious")
    # The link appears after the program has checked the directory.
    link = f"/bin/ln -sf {victim} /mps/{GPU}/pipe/{PID_FILE}"
    script = f'[ "$1" = -d ] && {link}\nexec {REAL} "$@"'
    replaced(rig.node.bin / "nvidia-cuda-mps-control", script)
    with served(rig, quarters()) as program:
        eventually(
            lambda: program.logged(Code.MPS_STARTED) or program.logged(Code.MPS_UNAVAILABLE),
            "a daemon that has started or has failed",
        )
        assert (rig.mps_root / GPU / "pipe" / PID_FILE).is_symlink()
        assert victim.read_text() == "precious"


# What the programs of the driver print


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("exit 0", "another program keeps"),
        ("echo 'Unknown command \"x\"'", "instead of a percentage"),
        ("echo nan", "instead of a percentage"),
        ("yes | head -c 100000000; exit 0", "instead of a percentage"),
    ],
    ids=["nothing", "an error", "no number", "very much"],
)
def test_an_answer_that_is_no_percentage_does_not_count_as_alive(
    rig: Rig, answer: str, reason: str
) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        real, _ = counted(rig.node.bin / "nvidia-cuda-mps-control", answer)
        [line] = program.wait_for_code(Code.MPS_UNAVAILABLE, reason)[:1]
        assert len(line) < 1500
        eventually(lambda: not (rig.mps_root / ".ready").exists(), "not ready")
        assert memory_mib(program.pid) < 500
        put_in_place(rig.node.bin / "nvidia-cuda-mps-control", f'#!/bin/sh\nexec {real} "$@"\n')
        wait_until_ready(rig)


def test_a_long_error_does_not_hide_the_reason(rig: Rig) -> None:
    script = "echo the reason is first; yes | head -c 1000000; echo and last; exit 1"
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        replaced(rig.node.bin / "nvidia-cuda-mps-control", script)
        [line] = program.wait_for_code(Code.MPS_UNAVAILABLE, "does not answer")[:1]
        assert "the reason is first" in line
        assert len(line) < 1500


def test_a_child_that_keeps_the_output_open_costs_neither_descriptors_nor_threads(
    rig: Rig,
) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = _counts(program.pid)
        # As long as the test, which ends it.
        script = f'while [ -e {rig.directory}/config.yaml ]; do sleep 0.2; done &\nexec {REAL} "$@"'
        _, probes = counted(rig.node.bin / "nvidia-cuda-mps-control", script)
        eventually(lambda: probes() > 10, "probes")
        assert all(n <= m + 6 for n, m in zip(_counts(program.pid), before, strict=True))
        assert (rig.mps_root / ".ready").exists()
        (rig.directory / "config.yaml").unlink()


def _counts(pid: int) -> tuple[int, int]:
    """Descriptors and threads."""
    proc = Path(f"/proc/{pid}")
    return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))


# Default limits


def test_a_program_that_is_faster_than_the_default_limits_does_not_keep_running(rig: Rig) -> None:
    go = rig.directory / "go"
    script = f"""
[ "$1" = -d ] && exec {REAL} "$@"
lines=$(cat)
case $lines in set_default*) while [ ! -e {go} ]; do sleep 0.02; done;; esac
echo "$lines" | {REAL}
"""
    replaced(rig.node.bin / "nvidia-cuda-mps-control", script)
    with served(rig, one_replica_each(4), env=timing(mps_command=60)) as program:
        eventually((rig.mps_root / GPU / "pipe" / "control").exists, "the daemon")
        with client(rig) as early:
            assert early.ready()["devices"][0]["limit_bytes"] is None
            assert not (rig.mps_root / ".ready").exists()
            go.touch()
            program.wait_for_code(Code.MPS_EARLY_CLIENT)
            wait_until_ready(rig)
            wait_until_gone(early.pid)
        assert bare(rig).device["limit_bytes"] == 3840 * MIB


# Sockets


def test_default_limits_that_somebody_changed_are_set_right(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    """With drivers before 550, every container can change them."""
    configs.update(default=one_replica_each(4))
    kubernetes.put("nodes", "n1")
    env = {
        "NODE_NAME": "n1",
        "KUBECONFIG": str(kubernetes.kubeconfig(rig.directory / "kubeconfig")),
        "CONFIG_FILE_SRCDIR": str(configs.directory),
        "DEFAULT_CONFIG": "default",
    }
    argv = [str(BIN / "mps-control-daemon")]
    places = {"/mps": rig.mps_root}
    with rig.run(argv, name="mps", env=env, places=places) as program:
        wait_until_ready(rig)
        pipe = rig.mps_root / GPU / "pipe"
        for line in (
            "set_default_active_thread_percentage 100",
            "set_default_active_thread_percentage 1",
            "set_default_device_pinned_mem_limit 1 9G",
        ):
            logged = program.logged(Code.MPS_DEFAULT_CHANGED)
            command(rig, pipe, line)
            program.wait_for_code(Code.MPS_DEFAULT_CHANGED, times=logged + 1)
            assert command(rig, pipe, "get_default_active_thread_percentage") == "25.0"
            assert command(rig, pipe, "get_default_device_pinned_mem_limit 1") == "3G"
        assert bare(rig, 1).device["limit_bytes"] == 3840 * MIB

        def reasons() -> list[str]:
            found = list(kubernetes.objects.items())
            return [event["reason"] for (kind, _), event in found if kind == "events"]

        eventually(lambda: Code.MPS_DEFAULT_CHANGED in reasons(), "an event of the node")
        program.stop(PATIENCE)


def command(rig: Rig, pipe: Path, line: str) -> str:
    done = subprocess.run(
        [rig.node.bin / "nvidia-cuda-mps-control"],
        env=rig.env() | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        input=f"{line}\n", capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    return done.stdout.strip()


def test_root_in_a_container_reaches_the_socket_for_everybody_only(rig: Rig) -> None:
    with served(rig, quarters()), advertised(rig, GPU):
        wait_until_ready(rig)
        answer = rig.allocate(GPU, min(rig.kubelet.devices(GPU)))
        inside = answer.envs["CUDA_MPS_PIPE_DIRECTORY"]
        places = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
        done = subprocess.run(
            rig.node.namespace_command(
                ["stat", "-c", "%F %i", f"{inside}/control", f"{inside}/control_privileged"], places
            ),
            env=rig.env(), capture_output=True, text=True, check=True, timeout=PATIENCE,
        )  # fmt: skip
        everybody, privileged = done.stdout.splitlines()
        assert everybody == privileged
        assert everybody.startswith("socket ")
        # Clients work.
        assert rig.contained(answer, "info")["error"] is None


@pytest.mark.parametrize(
    ("has_directory", "has_program"), [(True, True), (False, True), (True, False)]
)
def test_a_socket_of_a_daemon_that_is_only_assumed_to_run_is_not_mounted(
    rig: Rig, has_directory: bool, has_program: bool
) -> None:
    """The container runtime would create a directory in its place."""
    if has_directory:
        rig.pipe.mkdir()
    if not has_program:
        (rig.node.bin / "nvidia-cuda-mps-control").unlink()
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check=auto"):
        rig.kubelet.wait_for(RESOURCE)
        answer = rig.allocate(RESOURCE, min(rig.kubelet.devices(RESOURCE)))
        hidden = [m.host_path for m in answer.mounts if m.container_path.endswith("_privileged")]
        is_probed = has_directory and has_program
        assert hidden == ([str(rig.pipe / "control")] if is_probed else [])


# Shared memory


def test_containers_of_two_daemons_do_not_see_the_shared_memory_of_each_other(rig: Rig) -> None:
    one, two = "nvidia.com/one", "nvidia.com/two"
    with served(rig, TWO), advertised(rig, one, two):
        answers = [
            rig.allocate(resource, min(rig.kubelet.devices(resource))) for resource in (one, two)
        ]
        for answer, shell in zip(
            answers, ("echo secret > /dev/shm/file", "ls /dev/shm"), strict=True
        ):
            places = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
            done = subprocess.run(
                rig.node.namespace_command(["sh", "-c", shell], places),
                env=rig.env(), capture_output=True, text=True, check=True, timeout=PATIENCE,
            )  # fmt: skip
            assert done.stdout == ""
        # The daemon has the same directory as its containers.
        for resource, names in ((one, ["file"]), (two, [])):
            seen = Path(f"/proc/{daemons(rig)[resource]}/root/dev/shm")
            assert sorted(path.name for path in seen.iterdir()) == names


def test_shared_memory_is_a_bounded_tmpfs_that_outlives_a_killed_program_and_nothing_else(
    rig: Rig,
) -> None:
    flag, end = rig.config(TWO), rig.directory / "end"
    # A mount namespace in which the MPS root is shared, like on a host. It outlives the program.
    program = f"{BIN / 'mps-control-daemon'} {flag}"
    script = f"mount --make-shared /mps && while [ ! -e {end} ]; do {program}; done"
    with rig.run(["sh", "-c", script], name="mps", places={"/mps": rig.mps_root}) as host:
        wait_until_ready(rig)
        seen = Path(f"/proc/{host.pid}/root/mps/nvidia.com")
        for name in ("one", "two"):
            shm = seen / name / "shm"
            assert shm.is_mount()
            assert shm.stat().st_mode & 0o7777 == 0o1777
            memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
            system = os.statvfs(shm)
            # Two daemons share half of the memory.
            assert abs(system.f_blocks * system.f_frsize // 1024 - memory_kib // 4) <= 8
            (shm / "in-use").touch()
        [pid] = children(host.pid)
        # It cannot follow the edit before it is killed.
        os.kill(pid, signal.SIGSTOP)
        rig.config(TWO.replace("rename: two", "rename: three"))
        os.kill(daemons(rig)["nvidia.com/two"], signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        host.wait_for_code(Code.MPS_STARTED, "daemon=nvidia.com/three")
        wait_until_ready(rig)
        assert [path.name for path in (seen / "one" / "shm").iterdir()] == ["in-use"]
        assert (seen / "three" / "shm").is_mount()
        eventually(lambda: not (seen / "two" / "shm").exists(), "what nobody uses is removed")
        end.touch()
        os.kill(next(iter(children(host.pid))), signal.SIGTERM)
        assert host.wait(PATIENCE) == 0
        assert [path for path in rig.mps_root.rglob("shm") if path.exists()] == []


TWO = """
sharing:
  mps:
    resources:
      - {name: gpu, devices: [0], replicas: 2, rename: one}
      - {name: gpu, devices: [1], replicas: 2, rename: two}
"""
