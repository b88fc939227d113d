"""A node, its MPS daemons and its CUDA programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient, Outcome, run_client
from gpuslice_sim.node import SimNode, create

GIB = 1 << 30
MIB = 1 << 20
CONTEXT = 256 * MIB
SERVER = 32 * MIB

_LIST_PROCESSES = """
import json, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    "compute": {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)},
    "mps": {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)},
}))
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users can only be tried by root")


@dataclass
class MpsRig:
    directory: Path
    node: SimNode
    uuids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uuids = [gpu.uuid for gpu in self.node.gpus()]

    @property
    def simcuda(self) -> Path:
        return self.node.bin / "simcuda"

    def daemon(
        self,
        name: str = "mps",
        *,
        env: Mapping[str, str] | None = None,
        multiuser: bool = False,
        static_partitioning: bool = False,
    ) -> MpsDaemon:
        return MpsDaemon(
            self.node,
            self.directory / name,
            self.directory / f"{name}-log",
            env=env,
            multiuser=multiuser,
            static_partitioning=static_partitioning,
        )

    def run(
        self,
        *arguments: str,
        daemon: MpsDaemon | None = None,
        user: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Outcome:
        return run_client(self.simcuda, *arguments, env=self._env(daemon, env), user=user)

    def hold(
        self,
        *arguments: str,
        daemon: MpsDaemon | None = None,
        user: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> HeldClient:
        return HeldClient(self.simcuda, *arguments, env=self._env(daemon, env), user=user)

    def used_by(self, pid: int) -> dict[str, int]:
        """Bytes by GPU, as every reader of the state sees them."""
        return {p.gpu: p.used_bytes for p in self.node.state.processes() if p.pid == pid}

    def nvml_processes(self) -> dict[str, dict[str, int]]:
        """What the real binding reads for GPU 0, in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-c", _LIST_PROCESSES],
            env=self.node.env(),
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(json.loads(done.stdout))

    def open_to_all(self) -> None:
        """Lets other users reach the programs and sockets of this test."""
        self.directory.chmod(0o755)

    def _env(self, daemon: MpsDaemon | None, env: Mapping[str, str] | None) -> dict[str, str]:
        nowhere = {"CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "nobody-listens-here")}
        return (daemon.env() if daemon else nowhere) | dict(env or {})


def make_rig(directory: Path, profile: str = "t4x2", *, driver: int = 570) -> MpsRig:
    rig = MpsRig(directory, create(directory / "node", profile, driver=driver))
    rig.node.set({"cuda.context_bytes": CONTEXT, "mps.server_bytes": SERVER})
    return rig


def eventually(condition: Callable[[], object], timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def running_server(daemon: MpsDaemon) -> int:
    pid = daemon.server_pid()
    assert pid is not None
    return pid


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def status_field(pid: int, name: str) -> str:
    match = re.search(rf"^{name}:\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match
    return match[1]


def session_of(pid: int) -> int:
    return os.getsid(pid)
