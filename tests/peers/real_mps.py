"""NVIDIA's own MPS control program on a simulated node, in place of the stand-in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuslice_sim.mps.launch import daemons_at
from gpuslice_sim.process import BackgroundProcess
from tests.node import mps_programs
from tests.node.mps_commands import send
from tests.node.rig import GPU, Rig

from .driver_programs import DriverPrograms

_PATIENCE = 60.0


@dataclass(frozen=True)
class RealMps:
    """A node whose MPS programs are those of a driver branch."""

    rig: Rig
    branch: int

    @property
    def pipe(self) -> Path:
        return self.rig.mps_root / GPU / "pipe"

    @property
    def log(self) -> str:
        return (self.rig.mps_root / GPU / "log" / "control.log").read_text()

    @property
    def multi_user(self) -> bool:
        return self.branch >= 555

    @property
    def control(self) -> Path:
        return self.rig.node.bin / "nvidia-cuda-mps-control"

    @property
    def server(self) -> Path:
        """The server program, in a directory that only PATH leads to."""
        return self.rig.directory / "sbin" / "nvidia-cuda-mps-server"

    @contextmanager
    def served(
        self, text: str, name: str = "mps", env: Mapping[str, str] | None = None
    ) -> Iterator[BackgroundProcess]:
        """Our `mps-control-daemon`."""
        variables = self.env() | dict(env or {})
        with mps_programs.served(self.rig, text, env=variables, name=name) as program:
            yield program

    def env(self) -> dict[str, str]:
        path = self.rig.env()["PATH"]
        return {"PATH": f"{path}:{self.server.parent}"}

    def daemons(self) -> list[int]:
        return daemons_at(self.pipe)

    def command(self, line: str, *, pipe: Path | None = None, user: int | None = None) -> str:
        return send([self.control], pipe or self.pipe, line, user)

    def quit(self, daemon: int) -> None:
        """Repeated while the daemon serves another program."""
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}
        while daemon in self.daemons():
            subprocess.run([self.control], env=env, input=b"quit\n", check=False, timeout=_PATIENCE)

    def start_foreign(self, arguments: Sequence[str] = ("-d",)) -> None:
        """A daemon that another program of the node starts."""
        place = self.pipe.parent
        (place / "log").mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [self.control, *arguments],
            env={
                "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
                "CUDA_MPS_LOG_DIRECTORY": str(place / "log"),
            },
            check=False,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0


def install(rig: Rig, programs: DriverPrograms) -> RealMps:
    """Replaces the stand-in. All users can run the programs."""
    real = RealMps(rig, programs.branch)
    real.control.unlink()
    (rig.node.bin / real.server.name).unlink()
    shutil.copy(programs.control, real.control)
    real.server.parent.mkdir()
    shutil.copy(programs.server, real.server)
    rig.directory.chmod(0o755)
    return real
