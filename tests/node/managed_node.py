"""A node whose slices have managed MPS daemons: `gpuslice mps` and the agent as processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gpuslice_sim.process import BackgroundProcess

from .mps_programs import MIB, PATIENCE, wait_until_ready
from .rig import ALL, BIN, RESOURCE, Rig

MANAGED = "sharing: {memory: {reserve: 1GiB, mps: {mode: managed}}}"
GIB = 1024 * MIB


def program(
    rig: Rig, command: str, *args: str, env: Mapping[str, str] | None = None
) -> BackgroundProcess:
    """One of our programs, with the host's MPS root at /mps, like its pod."""
    flags = (f"--config-file={rig.directory / 'config.yaml'}", f"--mps-root={rig.mps_root}")
    argv = [str(BIN / "gpuslice"), command, *flags, *args]
    return rig.run(argv, name=command, env=env, places={"/mps": rig.mps_root})


@contextmanager
def served(rig: Rig, *, env: Mapping[str, str] | None = None) -> Iterator[BackgroundProcess]:
    with program(rig, "mps", env=env) as mps:
        try:
            yield mps
        finally:
            if mps.returncode is None:
                mps.stop(PATIENCE)


@contextmanager
def node(
    rig: Rig, text: str = MANAGED, *args: str, env: Mapping[str, str] | None = None
) -> Iterator[BackgroundProcess]:
    """Both programs. Yields the one that runs the daemons."""
    rig.config(text)
    with served(rig, env=env) as mps, program(rig, "agent", ALL, *args):
        wait_until_all_healthy(rig)
        yield mps


def wait_until_all_healthy(rig: Rig) -> None:
    rig.kubelet.wait_for(RESOURCE)
    rig.wait_for_healthy(RESOURCE, set(rig.kubelet.devices(RESOURCE)), PATIENCE)
    wait_until_ready(rig)


def uuids(rig: Rig) -> list[str]:
    return [gpu.uuid for gpu in rig.node.gpus()]
