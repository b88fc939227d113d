"""`mps-control-daemon` as a process, and the daemons and clients around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.mps.launch import daemons_at
from gpuslice_sim.mps.simcuda import HeldClient, Outcome, run_client
from gpuslice_sim.process import BackgroundProcess

from .rig import BIN, GPU, Rig, eventually

MIB = 1 << 20
SHARED = "nvidia.com/gpu.shared"
DEFAULT, EXCLUSIVE_PROCESS = 0, 3
PATIENCE = 40.0
# In a script: the program that the script replaces.
REAL = "REAL_PROGRAM"


def quarters(*, name: str = "gpu", more: str = "") -> str:
    return (
        "sharing: {mps: {failRequestsGreaterThanOne: false, "
        f"resources: [{{name: {name}, replicas: 4{more}}}]}}}}"
    )


def one_replica_each(replicas: int) -> str:
    """The default of MPS: a container gets one replica."""
    return f"sharing: {{mps: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}"


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
            rig.wait_for_limits(resource)
        # The agent probes a new daemon before the program has set its default limits.
        wait_until_ready(rig)
        yield plugin


def wait_until_ready(rig: Rig) -> None:
    eventually(lambda: (rig.mps_root / ".ready").exists(), ".ready")


def daemons(rig: Rig) -> dict[str, int]:
    """Resource, or GPU with slices -> process id of its daemon, if it runs."""
    return running(rig.mps_root)


def running(root: Path) -> dict[str, int]:
    """By the processes: drivers before 550 write no pid file."""
    found = {}
    for pipe in (*root.glob("*/*/pipe"), *root.glob("GPU-*/pipe")):
        for pid in daemons_at(pipe):
            found[str(pipe.parent.relative_to(root))] = pid
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


def counted(program: Path, script: str) -> tuple[Path, Callable[[], int]]:
    """As `replaced`. Also returns how often the script was run."""
    runs = program.with_name(f"{program.name}.runs")
    real = replaced(program, f"echo >> {runs}\n{script}")
    return real, lambda: len(runs.read_text()) if runs.exists() else 0


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
