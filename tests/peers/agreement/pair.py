"""The two plugins side by side: one node, two kubelets, the same flags, files and questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Kubelet
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import BackgroundProcess
from tests.peers.plugins import DEVICE_PLUGINS

PATIENCE = 90.0
CDI_DIRECTORY = "/run/cdi"
OURS = Path(sys.executable).parent / "nvidia-device-plugin"
# Release 0.19 has them on by default, 0.20 and we have not. Variables, so that flags win.
_DEFAULTS_OF_0_20 = {"GDS_ENABLED": "false", "MOFED_ENABLED": "false", "GDRCOPY_ENABLED": "false"}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str


Answers = list[api.ContainerAllocateResponse]


class ListeningKubelet(Kubelet):
    """Remembers what it was told at registration; the other one asks the plugin instead."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.told: dict[str, api.RegisterRequest] = {}

    def _register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        self.told[request.resource_name] = request
        return super()._register(request, context)


@dataclass
class Side:
    """One of the two plugins."""

    name: str
    kubelet: ListeningKubelet
    process: BackgroundProcess

    @property
    def cdi_directory(self) -> Path:
        """What it calls /run/cdi."""
        return _cdi_directory(self.kubelet.directory)

    def wait_for(self, resources: set[str]) -> None:
        self.wait_until(
            lambda: all(
                (found := self.kubelet.endpoint(name)) is not None and found.lists > 0
                for name in resources
            ),
            f"{', '.join(sorted(resources))} of {self.name}",
        )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def ended_or_so() -> bool:
            return condition() or self.process.returncode is not None

        try:
            self.kubelet.wait_until(ended_or_so, what, PATIENCE)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.process.output()}") from error
        assert condition(), f"{self.name} exited instead of {what}: {self.process.output()}"

    def registered(self, resource: str) -> tuple[object, ...]:
        """As it was told, and as the plugin says when it is asked."""
        told, endpoint = self.kubelet.told[resource], self.kubelet.wait_for(resource)
        return (
            told.version,
            told.endpoint,
            endpoint.socket.name,
            _options(told.options),
            _options(endpoint.options),
        )

    def listed(self, resource: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Id -> health and NUMA nodes, from a stream of its own."""
        stream = self.kubelet.wait_for(resource).channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )(api.Empty())
        first: api.ListAndWatchResponse = next(iter(stream))
        stream.cancel()
        return {d.ID: (d.health, tuple(n.ID for n in d.topology.nodes)) for d in first.devices}

    def health(self, resource: str) -> dict[str, str]:
        """As the kubelet knows it now. For faults: an own stream would take news from it."""
        return self.kubelet.devices(resource)

    def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> Answers | Refusal:
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        try:
            reply = self._call(resource, "Allocate", request, api.AllocateResponse)
        except grpc.RpcError as error:
            return _refusal(error)
        return list(reply.container_responses)

    def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str] | Refusal:
        wish = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[wish])
        try:
            reply = self._call(
                resource, "GetPreferredAllocation", request, api.PreferredAllocationResponse
            )
        except grpc.RpcError as error:
            return _refusal(error)
        [answer] = reply.container_responses
        return list(answer.deviceIDs)

    def _call(self, resource: str, method: str, request: object, reply: type[_T]) -> _T:
        return self.kubelet.wait_for(resource).call(method, request, reply, PATIENCE)


@dataclass
class Pair:
    node: SimNode
    theirs: Side
    ours: Side
    # Devices are named by index, which NVIDIA's lists in any order.
    by_index: bool = False
    # The resources that both must have, neither more nor less.
    resources: frozenset[str] = field(default_factory=frozenset)

    def wait_for(self, *resources: str) -> None:
        self.resources = frozenset(resources)
        for side in (self.theirs, self.ours):
            side.wait_for(set(resources))


@contextmanager
def started(
    program: Path,
    node: SimNode,
    directory: Path,
    flags: Sequence[str],
    env: Mapping[str, str | None],
    binds: Mapping[str, Path],
) -> Iterator[Pair]:
    """Both must still run at the end, and end well when asked to."""
    with (
        ListeningKubelet(directory / "t") as their_kubelet,
        ListeningKubelet(directory / "o") as our_kubelet,
        running(program, node, their_kubelet.directory, flags, env, binds) as theirs,
        running(OURS, node, our_kubelet.directory, flags, env, binds) as ours,
    ):
        yield Pair(
            node,
            Side("NVIDIA's plugin", their_kubelet, theirs),
            Side("our plugin", our_kubelet, ours),
        )


@contextmanager
def running(
    program: Path,
    node: SimNode,
    plugins: Path,
    flags: Sequence[str],
    env: Mapping[str, str | None],
    binds: Mapping[str, Path],
) -> Iterator[BackgroundProcess]:
    """One plugin, whose kubelet directory is `plugins`; a variable that is None is unset."""
    plugins.mkdir(parents=True, exist_ok=True)
    # The driver root alone leads it to the library, as in a container with the driver mounted.
    argv = ["env", "-u", "LD_LIBRARY_PATH", str(program), f"--driver-root-ctr-path={node.root}"]
    places = {DEVICE_PLUGINS: plugins, CDI_DIRECTORY: _cdi_directory(plugins), **binds}
    log = plugins.with_suffix(".log")
    log.unlink(missing_ok=True)
    # Ours delays repeated rejections, and tests cause many.
    variables = {**os.environ, **_DEFAULTS_OF_0_20, "GPUSLICE_TIMING": "refusal=0.01", **env}
    process = BackgroundProcess(
        node.namespace_command([*argv, *flags], places),
        env=node.env({name: value for name, value in variables.items() if value is not None}),
        log=log,
    )
    with process:
        yield process


def _cdi_directory(plugins: Path) -> Path:
    return plugins.with_suffix(".cdi")


def _options(options: api.DevicePluginOptions) -> tuple[bool, bool]:
    return options.pre_start_required, options.get_preferred_allocation_available


def _refusal(error: grpc.RpcError) -> Refusal:
    call: Any = error  # what a call raises is an RpcError and a Call in one
    return Refusal(call.details())
