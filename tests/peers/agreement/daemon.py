"""NVIDIA's MPS control daemon, for whatever resources a configuration shares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuslice_sim.mps.launch import kill, running_process
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import BackgroundProcess

_PATIENCE = 90.0


@contextmanager
def shared_by_mps(
    program: Path, node: SimNode, config: Path, place: Path
) -> Iterator[BackgroundProcess]:
    """It is ready when this begins; `place` is what it calls /mps."""
    place.mkdir()
    argv = [str(program), f"--config-file={config}"]
    command = node.namespace_command(argv, {"/mps": place})
    with BackgroundProcess(command, env=node.env(), log=place.with_suffix(".log")) as daemon:
        try:
            _wait_until_ready(daemon, place)
            yield daemon
        finally:
            if daemon.returncode is None:
                daemon.stop()
            _end_what_it_left(place)


def _wait_until_ready(daemon: BackgroundProcess, place: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (place / ".ready").exists():
        assert daemon.returncode is None, daemon.output()
        assert time.monotonic() < deadline, daemon.output()
        time.sleep(0.02)


def _end_what_it_left(place: Path) -> None:
    """It quits the daemons that it started; when it cannot, they must not stay behind."""
    for pid_file in place.rglob("nvidia-cuda-mps-control.pid"):
        if (pid := running_process(pid_file)) is not None:
            kill(pid)
