"""A simulated node with a kubelet, where the real agent runs as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import pytest

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Allocation, Container, Endpoint, Kubelet, Pod
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import PATIENCE_SECONDS, BackgroundProcess
from tests.timing import timing

RESOURCE = "aliyun.com/gpu-mem"
GPU = "nvidia.com/gpu"
BIN = Path(sys.executable).parent

# Two names of one program. As an agent it slices memory by default.
AGENT, PLUGIN = "gpuslice agent", "nvidia-device-plugin"
ENTRY_POINTS = {AGENT: ["gpuslice", "agent"], PLUGIN: ["nvidia-device-plugin"]}
# Most tests count all healthy devices; `test_advertising` tests the default.
ALL = "--memory-advertise=all"

ONLY_DEVICES = {AGENT: ["--memory-devices=none"], PLUGIN: []}

_EXCLUSIVE_PROCESS = 3


def eventually(
    condition: Callable[[], object], what: str, timeout: float = PATIENCE_SECONDS
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)


def whole_gpus(args: Sequence[str]) -> list[str]:
    """Most tests count whole GPUs; `test_reserve` tests the default of limited slices."""
    names = [arg.partition("=")[0] for arg in args]
    limited = "--mps-pipe" in names and "--memory-reserve" not in names
    return ["--memory-reserve=0"] if limited else []


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")


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
        return self.node.env() | {"KUBELET_SOCKET": str(self.kubelet_socket)} | timing()

    def agent(
        self, *args: str, name: str = "agent", env: Mapping[str, str] | None = None
    ) -> BackgroundProcess:
        argv = [str(BIN / "gpuslice"), "agent", *whole_gpus(args), *args]
        return BackgroundProcess(
            argv, env=self.env() | dict(env or {}), log=self.directory / f"{name}.log"
        )

    def gpushare(self, *args: str, env: Mapping[str, str] | None = None) -> BackgroundProcess:
        argv = [str(BIN / "gpushare-device-plugin-v2"), *args]
        return self.run(argv, name="gpushare", env=env)

    def plugin(
        self,
        *args: str,
        entry: str = PLUGIN,
        name: str = "plugin",
        env: Mapping[str, str] | None = None,
        places: Mapping[str, Path] | None = None,
    ) -> BackgroundProcess:
        """Advertises whole GPUs by default.

        With `places` it runs in a namespace with the devices of this node and these directories.
        """
        argv = [*self.program(entry), *ONLY_DEVICES[entry], *args]
        return self.run(argv, name=name, env=env, places=places)

    @staticmethod
    def program(entry: str) -> list[str]:
        file, *words = ENTRY_POINTS[entry]
        return [str(BIN / file), *words]

    def run(
        self,
        argv: list[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        places: Mapping[str, Path] | None = None,
    ) -> BackgroundProcess:
        inside = argv if places is None else self.node.namespace_command(argv, places)
        log = self.directory / f"{name}.log"
        return BackgroundProcess(inside, env=self.env() | dict(env or {}), log=log)

    def config(self, text: str) -> str:
        """The flag for a file with this content, which is replaced atomically."""
        path = self.directory / "config.yaml"
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(path)
        return f"--config-file={path}"

    def advertised(self) -> dict[str, list[str]]:
        """Resource -> ids of its devices."""
        return {name: sorted(self.kubelet.devices(name)) for name in self.kubelet.resources()}

    def wait_for_resources(
        self, *resources: str, timeout: float = PATIENCE_SECONDS
    ) -> dict[str, list[str]]:
        for resource in resources:
            self.kubelet.wait_for(resource, timeout)
        return self.advertised()

    def allocate(self, resource: str, *ids: str) -> api.ContainerAllocateResponse:
        """Allocate for one container with exactly these devices."""
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        endpoint = self.kubelet.wait_for(resource)
        reply = endpoint.call("Allocate", request, api.AllocateResponse, PATIENCE_SECONDS)
        [answer] = reply.container_responses
        return answer

    def healthy(self, resource: str) -> set[str]:
        return {i for i, health in self.kubelet.devices(resource).items() if health == "Healthy"}

    def wait_for_healthy(
        self, resource: str, ids: set[str], timeout: float = PATIENCE_SECONDS
    ) -> None:
        """Until exactly these devices are healthy."""
        self.kubelet.wait_until(
            lambda: self.healthy(resource) == ids,
            f"{len(ids)} healthy devices of {resource}",
            timeout,
        )

    def wait_for_limits(self, resource: str = RESOURCE) -> Endpoint:
        """Until devices are healthy: on a busy machine the first probe of MPS may fail.

        One daemon serves all devices, so either all of them are healthy or none.
        """
        endpoint = self.kubelet.wait_for(resource)
        self.kubelet.wait_until(
            lambda: self.kubelet.allocatable(resource) > 0, f"{resource} to be healthy"
        )
        return endpoint

    def mps_daemon(self, resource: str) -> MpsDaemon:
        """The daemon of a resource, below `mps_root` like in NVIDIA's MPS pod."""
        for gpu in self.node.gpus():
            self.node.set({f"gpu.{gpu.index}.compute_mode": _EXCLUSIVE_PROCESS})
        place = self.mps_root / resource
        place.mkdir(parents=True, exist_ok=True)
        return MpsDaemon(self.node, place / "pipe", place / "log")

    @property
    def mps_root(self) -> Path:
        return self.directory / "m"

    def contained(self, answer: api.ContainerAllocateResponse, *args: str) -> dict[str, Any]:
        """Runs a CUDA program in a container with the mounts and variables of the answer."""
        places = {m.container_path: Path(m.host_path) for m in answer.mounts}
        return self._simcuda(
            self.node.namespace_command([str(self.node.bin / "simcuda"), *args], places),
            dict(answer.envs),
        )

    def holding(self, answer: api.ContainerAllocateResponse, *args: str) -> BackgroundProcess:
        """Like `contained`, but the program keeps its memory."""
        places = {m.container_path: Path(m.host_path) for m in answer.mounts}
        argv = [str(self.node.bin / "simcuda"), "hold", *args]
        return BackgroundProcess(
            self.node.namespace_command(argv, places),
            env=dict(answer.envs),
            log=self.directory / "holding.log",
        )

    def admit(self, units: int, name: str = "pod") -> Allocation:
        """Admits a pod with one container that requests this many units."""
        return self.kubelet.admit(Pod(name, [Container("main", {RESOURCE: units})]))[0]

    def healthy_units(self, uuid: str) -> int:
        devices = self.kubelet.devices(RESOURCE)
        return sum(i.startswith(uuid) and h == "Healthy" for i, h in devices.items())

    def simcuda(
        self, answer: api.ContainerAllocateResponse, *args: str, **more: str
    ) -> dict[str, Any]:
        """Runs a CUDA program with exactly the environment that the container would have.

        Mounts have the same path on both sides, so a process on the node has them already.
        """
        assert all(
            m.host_path == m.container_path or m.host_path.endswith("/control")
            for m in answer.mounts
        )
        return self._simcuda([str(self.node.bin / "simcuda"), *args], dict(answer.envs) | more)

    @staticmethod
    def _simcuda(argv: list[str], env: dict[str, str]) -> dict[str, Any]:
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert done.stdout, f"{argv} printed nothing: {done.stderr}"
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@dataclass
class Listener:
    """Another open device stream, in addition to the kubelet's."""

    endpoint: Endpoint
    lists: list[api.ListAndWatchResponse] = field(default_factory=list)

    def __enter__(self) -> Self:
        rpc: Any = self.endpoint.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        self._stream = rpc(api.Empty())
        self.lists.append(next(self._stream))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.cancel()
        self._thread.join()

    def health(self, number: int = -1) -> dict[str, str]:
        return {device.ID: device.health for device in self.lists[number].devices}

    def numa_nodes(self) -> dict[str, list[int]]:
        return {d.ID: [node.ID for node in d.topology.nodes] for d in self.lists[-1].devices}

    def _listen(self) -> None:
        try:
            for message in self._stream:
                self.lists.append(message)
        except grpc.RpcError:
            return
