"""NVIDIA's MPS control program and the stand-in, side by side."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuslice_sim.mps.launch import daemons_at, kill
from gpuslice_sim.node import create
from gpuslice_sim.process import as_user

from .driver_programs import DriverPrograms

_PATIENCE = 60.0


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Side:
    """A control program, with directories of its own."""

    program: Path
    directory: Path

    @property
    def pipe(self) -> Path:
        return self.directory / "pipe"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def run(
        self,
        *arguments: str,
        lines: str = "",
        env: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> Outcome:
        directories = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }
        done = subprocess.run(
            as_user(user, self.program, *arguments),
            env=directories | dict(env or {}),
            input=lines,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        place = str(self.directory)
        return Outcome(
            done.returncode,
            done.stdout.replace(place, "<directory>"),
            done.stderr.replace(place, "<directory>"),
        )

    def daemons(self) -> list[int]:
        return daemons_at(self.pipe)

    def end(self) -> None:
        for pid in self.daemons():
            kill(pid)


@dataclass(frozen=True)
class MpsPair:
    branch: int
    real: Side
    ours: Side

    def agree(
        self,
        *arguments: str,
        lines: str = "",
        env: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> Outcome:
        """What both programs answer. It must be the same."""
        theirs = self.real.run(*arguments, lines=lines, env=env, user=user)
        ours = self.ours.run(*arguments, lines=lines, env=env, user=user)
        assert ours == theirs, f"{arguments} {lines!r}: ours {ours}, NVIDIA's {theirs}"
        return theirs

    def sides(self) -> Sequence[Side]:
        return (self.real, self.ours)


@contextmanager
def mps_pair(programs: DriverPrograms, scratch: Path) -> Iterator[MpsPair]:
    """All users can reach both programs."""
    scratch.chmod(0o755)
    node = create(scratch / "node", "t4x2", driver=programs.branch)
    real = scratch / "real-bin" / programs.control.name
    real.parent.mkdir()
    real.write_bytes(programs.control.read_bytes())
    real.chmod(0o755)
    pair = MpsPair(
        programs.branch,
        Side(real, scratch / "real"),
        Side(node.bin / "nvidia-cuda-mps-control", scratch / "ours"),
    )
    for side in pair.sides():
        side.directory.mkdir()
    try:
        yield pair
    finally:
        for side in pair.sides():
            side.end()


def without_times(log: str) -> list[str]:
    """The lines of a log, without time and process."""
    return [line.partition("] ")[2] for line in log.splitlines()]
