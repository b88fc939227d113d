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
from tests.node.rig import GPU, Rig

from .driver_programs import DriverPrograms

_PATIENCE = 60.0
# Its answer, a percentage, proves that the daemon got to the end of the commands.
_LAST = "get_default_active_thread_percentage"


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
    def server(self) -> Path:
        """The server program, in a directory that only PATH leads to."""
        return self.rig.directory / "sbin" / "nvidia-cuda-mps-server"

    @contextmanager
    def served(self, text: str, name: str = "mps") -> Iterator[BackgroundProcess]:
        """Our `mps-control-daemon`."""
        with mps_programs.served(self.rig, text, env=self.env(), name=name) as program:
            yield program

    def env(self) -> Mapping[str, str]:
        path = self.rig.env()["PATH"]
        return {"PATH": f"{path}:{self.server.parent}"}

    def daemons(self) -> list[int]:
        return daemons_at(self.pipe)

    def command(self, line: str, *, pipe: Path | None = None, user: int | None = None) -> str:
        """The answer of the daemon. Its exit status means only that a daemon answered.

        While programs of ours send commands, the daemon may drop this one: it is repeated.
        """
        for _ in range(20):
            done = subprocess.run(
                [self.rig.node.bin / "nvidia-cuda-mps-control"],
                env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe or self.pipe)},
                input=f"{line}\n{_LAST}\n",
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
                user=user,
            )
            answers = done.stdout.strip().splitlines()
            is_complete = bool(answers) and answers[-1].replace(".", "").isdecimal()
            if done.returncode == 0 and (is_complete or line.startswith("quit")):
                break
        assert done.returncode == 0, done.stdout + done.stderr
        return "\n".join(answers[:-1] if is_complete else answers)

    def start_foreign(self, arguments: Sequence[str] = ("-d",)) -> None:
        """A daemon that another program of the node starts."""
        place = self.pipe.parent
        (place / "log").mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [self.rig.node.bin / "nvidia-cuda-mps-control", *arguments],
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
    control = rig.node.bin / "nvidia-cuda-mps-control"
    control.unlink()
    shutil.copy(programs.control, control)
    real.server.parent.mkdir()
    shutil.copy(programs.server, real.server)
    rig.directory.chmod(0o755)
    return real
