"""Which processes use how much memory of which GPU: the part of the state that MPS servers use."""

from __future__ import annotations

import fcntl
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice_sim.errors import SimError
from gpuslice_sim.state import Process, State, Value, render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice_sim.mps.devices import Device


@dataclass(frozen=True)
class Entry:
    """A process on a GPU. `kind` is C, or M+C for a client of MPS."""

    pid: int
    gpu: str
    kind: str
    used_bytes: int
    sm_percent: int
    name: str


class GpuUsage:
    """Each entry has a lock of this process, so that it ends with the process, even if killed."""

    def __init__(self, node: Path) -> None:
        self._directory = node / "state"
        self._state = State(node)
        self._seen: tuple[tuple[int, int, int], ...] = ()
        self._values: Mapping[str, str] = {}
        self._held: dict[tuple[int, str], tuple[int, Path]] = {}

    def values(self) -> Mapping[str, str]:
        """The keys of the state. They are read again only if a file changed."""
        now = tuple(_stamp(self._directory / name) for name in ("node", "overrides"))
        if now != self._seen:
            self._values = self._state.values()
            self._seen = now
        return self._values

    def locked(self) -> AbstractContextManager[None]:
        """No other process checks for free memory and allocates while this is held."""
        return self._state.lock()

    def processes(self, device: Device) -> list[Process]:
        return [process for process in self._state.processes() if process.gpu == device.uuid]

    def free_bytes(self, device: Device) -> int:
        used = sum(process.used_bytes for process in self.processes(device))
        return max(device.total_bytes - device.reserved_bytes - used, 0)

    def holders(self, device: Device) -> set[int]:
        """Processes that opened the GPU themselves. Clients of MPS use it through their server."""
        return {process.pid for process in self.processes(device) if process.kind == "C"}

    def hold(self, owner: int, entry: Entry) -> None:
        """Writes the entry of `owner` for this GPU, and replaces an earlier one."""
        # Clients in a PID namespace that the server cannot see all have PID 0.
        who = entry.pid or f"0.{owner}"
        path = self._directory / "procs" / f"{who}-{entry.gpu}"
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, _render(entry))
        fresh.rename(path)
        former = self._held.get((owner, entry.gpu))
        self._held[owner, entry.gpu] = (file, path)
        if former is not None:
            os.close(former[0])

    def release(self, owner: int, gpu: str) -> None:
        file, path = self._held.pop((owner, gpu), (-1, Path()))
        if file >= 0:
            path.unlink(missing_ok=True)
            os.close(file)

    def close(self) -> None:
        for owner, gpu in list(self._held):
            self.release(owner, gpu)


def node_directory() -> Path:
    """The directory of the node. The wrapper script of the program sets the variable."""
    name = "GPUSLICE_SIM_NODE"
    if not os.environ.get(name):
        raise SimError(f"{name} is not set: start MPS as bin/nvidia-cuda-mps-control of a node")
    return Path(os.environ[name])


def _render(entry: Entry) -> bytes:
    fields: dict[str, Value] = {
        "pid": entry.pid,
        "gpu": entry.gpu,
        "type": entry.kind,
        "used": entry.used_bytes,
        "sm": entry.sm_percent,
        "name": entry.name.replace("\n", " "),
        "live": "lock",
    }
    return render(fields).encode()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        seen = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns)
