"""Starts the processes of the demo, and stops them at its end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuslice_sim.kubelet import Allocation, Container, Kubelet, Pod
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.node import SimGpu, SimNode, create
from gpuslice_sim.process import BackgroundProcess

RESOURCE = "aliyun.com/gpu-mem"


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that was admitted and started."""

    allocation: Allocation
    env: dict[str, str]

    @property
    def name(self) -> str:
        return self.allocation.pod.name

    @property
    def units(self) -> int:
        return len(self.allocation.ids)

    @property
    def gpu(self) -> str:
        return self.env["NVIDIA_VISIBLE_DEVICES"]


class Stage:
    """A node, its MPS daemon, its kubelet and the agent. All of them end with the `with` block."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self._exit = ExitStack()
        self.running: list[Running] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(tempfile.mkdtemp(prefix="gpuslice-demo-"))
            stack.callback(shutil.rmtree, self.directory)
            self.node: SimNode = create(self.directory / "node", self.profile)
            self.pipe = self.directory / "mps"
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()

    @property
    def gpus(self) -> list[SimGpu]:
        return self.node.gpus()

    def start_mps(self) -> None:
        """What an administrator does once: exclusive GPUs, and a daemon for all users."""
        for gpu in self.gpus:
            subprocess.run(
                ["nvidia-smi", "-i", gpu.uuid, "-c", "EXCLUSIVE_PROCESS"],
                env=self.node.env(),
                check=True,
                capture_output=True,
            )
        self.mps = MpsDaemon(self.node, self.pipe, self.directory / "mps-log")
        self.mps.start()
        self._exit.callback(self.mps.stop)

    def start_kubelet(self) -> None:
        self.kubelet = Kubelet(self.directory / "kubelet")
        self.kubelet.start()
        self._exit.callback(self.kubelet.stop)

    def start_agent(self) -> BackgroundProcess:
        argv = [sys.executable, "-m", "gpuslice", *self.agent_arguments()]
        agent = BackgroundProcess(argv, env=self.node.env(), log=self.directory / "agent.log")
        self._exit.callback(agent.kill)
        self.agent = agent
        return agent

    def agent_arguments(self) -> list[str]:
        socket = self.directory / "kubelet" / "kubelet.sock"
        return ["agent", "--mps-pipe", str(self.pipe), "--kubelet-socket", str(socket)]

    def run_pod(self, name: str, units: int) -> Running:
        """Raises AdmissionError or StartError, as the kubelet would report them."""
        pod = Pod(name, [Container("main", {RESOURCE: units})])
        [allocation] = self.kubelet.admit(pod)
        answer = self.kubelet.start_container(pod, "main")
        running = Running(allocation, dict(answer.envs))
        self.running.append(running)
        return running

    def simcuda(self, running: Running, *args: str) -> dict[str, Any]:
        """Runs a CUDA program with the environment of the container, and nothing else."""
        done = subprocess.run(
            [self.node.bin / "simcuda", *args],
            env=running.env,
            capture_output=True,
            text=True,
            check=False,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def free_units(self) -> dict[str, int]:
        """GPU -> units that are healthy and not in use."""
        in_use = {i for running in self.running for i in running.allocation.ids}
        free = {gpu.uuid: 0 for gpu in self.gpus}
        for device, health in self.kubelet.devices(RESOURCE).items():
            uuid = device.partition("-_-")[0]
            if health == "Healthy" and device not in in_use:
                free[uuid] += 1
        return free
