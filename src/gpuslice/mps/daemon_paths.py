"""The directories of MPS control daemons, by NVIDIA's names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The mount point of the host's MPS root in the agent, the daemons and all containers.
ROOT = Path("/mps")

# The sockets of a daemon in its pipe directory: for everybody, and for root.
CONTROL = "control"
PRIVILEGED_CONTROL = "control_privileged"

_PIPE = "pipe"
_STARTED = ".started"
SHM = "shm"
DRAINING = ".draining"
_NAMESPACES = ".namespaces"


@dataclass(frozen=True, slots=True)
class DaemonPaths:
    """The files of one daemon.

    Its name is a resource, with a slash, or the UUID of the GPU whose memory is sliced.
    """

    name: str
    root: Path = ROOT

    @property
    def directory(self) -> Path:
        return self.root / self.name

    @property
    def pipe(self) -> Path:
        return self.directory / _PIPE

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def shm(self) -> Path:
        """The /dev/shm of this daemon and of its clients, and of nobody else."""
        return self.directory / SHM

    @property
    def started(self) -> Path:
        """Exists while a daemon of ours runs or starts. Lists its GPUs, one per line."""
        return self.directory / _STARTED

    @property
    def draining(self) -> Path:
        """Exists while a daemon of ours waits for its clients before it stops."""
        return self.directory / DRAINING

    @property
    def namespaces(self) -> Path:
        """Exists while a daemon of ours has, or is to have, namespaces. See `NamespaceMarker`."""
        return self.directory / _NAMESPACES

    @property
    def pid_file(self) -> Path:
        return self.pipe / "nvidia-cuda-mps-control.pid"


def started_daemons(root: Path) -> list[str]:
    """The names of daemons of ours that were started and not stopped."""
    # A resource has two parts, a GPU one.
    patterns = (f"*/*/{_STARTED}", f"GPU-*/{_STARTED}")
    found = (path.parent for pattern in patterns for path in root.glob(pattern))
    return sorted(str(path.relative_to(root)) for path in found)


def ready_file(root: Path) -> Path:
    """Exists while every daemon answers."""
    return root / ".ready"


def shm_directory(root: Path) -> Path:
    """One for the node, as NVIDIA's program has it. Daemons of ours do not use it."""
    return root / SHM


def daemon_of(pipe_directory: str) -> str | None:
    """The name of the daemon that listens there; None if it is another directory."""
    path = Path(pipe_directory)
    if path.name != _PIPE or not path.is_relative_to(ROOT):
        return None
    return str(path.parent.relative_to(ROOT))
