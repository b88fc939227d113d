"""A simulated node with a kubelet on it, where the real agent runs as a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Allocation, Container, Kubelet, Pod
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import BackgroundProcess

RESOURCE = "aliyun.com/gpu-mem"
BIN = Path(sys.executable).parent


@dataclass
class Rig:
    node: SimNode
    kubelet: Kubelet
    directory: Path

    @property
    def kubelet_socket(self) -> Path:
        return self.kubelet.directory / "kubelet.sock"

    @property
    def socket(self) -> Path:
        return self.kubelet.directory / "aliyungpushare.sock"

    @property
    def pipe(self) -> Path:
        return self.directory / "mps"

    def env(self) -> dict[str, str]:
        return self.node.env() | {"KUBELET_SOCKET": str(self.kubelet_socket)}

    def agent(
        self, *args: str, name: str = "agent", env: Mapping[str, str] | None = None
    ) -> BackgroundProcess:
        argv = [str(BIN / "gpuslice"), "agent", *args]
        return BackgroundProcess(
            argv, env=self.env() | dict(env or {}), log=self.directory / f"{name}.log"
        )

    def gpushare(self, *args: str) -> BackgroundProcess:
        argv = [str(BIN / "gpushare-device-plugin-v2"), *args]
        return BackgroundProcess(argv, env=self.env(), log=self.directory / "gpushare.log")

    def admit(self, units: int, name: str = "pod") -> Allocation:
        """A pod with one container that asks for this many units."""
        return self.kubelet.admit(Pod(name, [Container("main", {RESOURCE: units})]))[0]

    def healthy_units(self, uuid: str) -> int:
        devices = self.kubelet.devices(RESOURCE)
        return sum(i.startswith(uuid) and h == "Healthy" for i, h in devices.items())

    def simcuda(
        self, answer: api.ContainerAllocateResponse, *args: str, **more: str
    ) -> dict[str, Any]:
        """A CUDA program with just the environment that the container would have.

        Mounts have the same path on both sides, so a process on the node sees what they bring.
        """
        assert all(m.host_path == m.container_path for m in answer.mounts)
        done = subprocess.run(
            [self.node.bin / "simcuda", *args],
            env=dict(answer.envs) | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.stdout, f"simcuda {args} said nothing: {done.stderr}"
        result: dict[str, Any] = json.loads(done.stdout)
        return result
