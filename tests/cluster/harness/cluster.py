"""A whole cluster on this machine.

with Cluster([NodeSpec("node-a", profile="t4x2")]) as cluster:
    cluster.create(pod)
    cluster.wait_for_pod("train")
    print(cluster.logs("train"))
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from gpuslice.kubelet.api import podresources_pb2
from tests.cluster.build import Binaries, get_binaries
from tests.peers.build import Say, cache_directory, to_stderr

from . import runs
from .client import RESOURCE, Client
from .control_plane import ControlPlane
from .images import write_pause_image, write_test_image
from .node import Node, NodeSpec
from .processes import Process
from .runs import Run
from .waiting import PATIENCE_SECONDS, eventually

T = TypeVar("T")

RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
_LIST_REQUEST = podresources_pb2.ListPodResourcesRequest()
_LIST_ANSWER = podresources_pb2.ListPodResourcesResponse.FromString
_ALLOCATABLE_REQUEST = podresources_pb2.AllocatableResourcesRequest()
_ALLOCATABLE_ANSWER = podresources_pb2.AllocatableResourcesResponse.FromString
# The number of the interface that has the services' addresses; those of nodes count from 0.
_SERVICES = 255
_NEEDED = ("ip", "mount", "nsenter", "openssl", "setpriv", "stat")


class Cluster(Client):
    def __init__(
        self,
        nodes: Sequence[NodeSpec] = (NodeSpec("node-a"), NodeSpec("node-b")),
        *,
        extenders: Sequence[Mapping[str, Any]] = (),
        binaries: Binaries | None = None,
        say: Say = to_stderr,
    ) -> None:
        """`extenders` go into the scheduler's configuration as they are."""
        self._specs = list(nodes)
        self._extenders = extenders
        self._binaries = binaries
        self._say = say
        self.gpu_node = next((spec.name for spec in self._specs), "")
        self.nodes: list[Node] = []
        self.timings: dict[str, float] = {}

    def __enter__(self) -> Self:
        _check_machine()
        self.binaries = self._binaries or get_binaries(say=self._say)
        self.kubectl_program = self.binaries.kubectl
        self._began = time.monotonic()
        self._run = Run()
        try:
            self._start()
        except BaseException:
            self._say(self.describe_processes())
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends every process and removes everything but the logs."""
        with contextlib.ExitStack() as steps:  # each is taken, whatever the others do
            steps.callback(self._close_run)
            if plane := getattr(self, "control_plane", None):
                steps.callback(plane.stop)
                steps.callback(plane.kube.close)
            for node in self.nodes:
                steps.callback(node.remove)
        self.nodes = []

    # Talking to it

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.admin

    @property
    def server(self) -> str:
        """The API server, where pods find it too."""
        return self.control_plane.credentials.server

    @property
    def run(self) -> Run:
        return self._run

    @property
    def images(self) -> list[Path]:
        """Those of the scenarios, which every node has."""
        return sorted((self._run.directory / "images").iterdir())

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def pod_resources(self, node: str) -> dict[tuple[str, str], dict[str, list[str]]]:
        """(pod, container) -> resource -> device ids, as the kubelet has assigned them."""
        return {
            (pod.name, container.name): _by_resource(container.devices)
            for pod in self._ask_kubelet(node, "List", _LIST_REQUEST, _LIST_ANSWER).pod_resources
            for container in pod.containers
        }

    def allocatable_devices(self, node: str) -> dict[str, list[str]]:
        """Resource -> ids of healthy devices: what the kubelet knows now, ahead of the status."""
        answer = self._ask_kubelet(
            node, "GetAllocatableResources", _ALLOCATABLE_REQUEST, _ALLOCATABLE_ANSWER
        )
        return _by_resource(answer.devices)

    def wait_for_amount(
        self,
        node: str,
        amount: int | None = None,
        *,
        resource: str = RESOURCE,
        timeout: float = PATIENCE_SECONDS,
    ) -> int:
        """Until so much is allocatable, by the kubelet and by the node's status, which lags behind;
        if None, anything at all."""

        def check() -> bool:
            try:
                known = len(self.allocatable_devices(node).get(resource, []))
            except grpc.RpcError:  # the kubelet is just starting
                return False
            wanted = known > 0 if amount is None else known == amount
            return wanted and known == self.amount(node, resource=resource)

        eventually(
            check,
            f"{node} has {'some' if amount is None else amount} {resource} allocatable",
            timeout=timeout,
            explain=lambda: self.node(node).agent.tail(),
        )
        return self.amount(node, resource=resource)

    def wait_for_node(self, name: str, *, timeout: float = PATIENCE_SECONDS) -> None:
        eventually(
            lambda: self._is_ready(name),
            f"{name} is Ready",
            timeout=timeout,
            explain=lambda: self.node(name).kubelet.tail(),
        )

    def describe_processes(self, lines: int = 12) -> str:
        """The end of every log, for a failure report."""
        parts = []
        for process in self._processes():
            state = "runs" if process.running else "DOES NOT RUN"
            parts.append(f"--- {process.name} ({state}), {process.log}\n{process.tail(lines)}")
        return "\n".join(parts)

    def _ask_kubelet(
        self, node: str, method: str, request: Message, answer: Callable[[bytes], T]
    ) -> T:
        channel = grpc.insecure_channel(
            f"unix:{self.node(node).pod_resources_socket}",
            options=[("grpc.max_receive_message_length", -1)],
        )
        with channel:
            ask: Callable[..., T] = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer,
            )
            return ask(request, timeout=60)

    def _close_run(self) -> None:
        self._say(f"logs: {self._run.close(cache_directory('cluster') / 'logs')}")

    # How it starts

    def _start(self) -> None:
        address = f"10.{self._run.subnet_octet}.255.1"
        runs.make_bridge(self._run.bridge(_SERVICES), address)
        plane = ControlPlane(
            self._run.directory / "control-plane",
            self._run.logs,
            self.binaries,
            address=address,
            extenders=self._extenders,
        )
        self.control_plane = plane
        self.kube = plane.kube
        cache = self._run.directory / "kubectl-cache"
        self.kubectl_environment = {"KUBECONFIG": str(plane.admin), "KUBECACHEDIR": str(cache)}
        kubeconfigs = [
            plane.credentials.add_user(f"system:node:{spec.name}", "system:nodes")
            for spec in self._specs
        ]
        plane.start_api()
        for index, (spec, kubeconfig) in enumerate(zip(self._specs, kubeconfigs, strict=True)):
            node = Node(spec, index, self._run, self.binaries, kubeconfig)
            self.nodes.append(node)
            node.start_runtime()
        images = self._write_images()
        for node in self.nodes:
            node.import_images(images)
        plane.wait_for_api()
        self._note("API server ready")
        plane.start_controllers()
        for node in self.nodes:
            node.start_kubelet()
            node.start_agent()
        self.create(RUNTIME_CLASS)
        for node in self.nodes:
            self.wait_for_node(node.name)
        self._note("nodes Ready")
        for node in self.nodes:
            if node.spec.agent:
                self.wait_for_amount(node.name, resource=node.spec.resource)
        self._note("slices offered")
        self.wait_for_service_account()

    def _write_images(self) -> list[Path]:
        directory = self._run.directory / "images"
        directory.mkdir()
        test, pause = directory / "test.tar", directory / "pause.tar"
        if self.nodes:
            write_test_image(test, self.binaries.busybox, self.nodes[0].sim.bin)
        write_pause_image(pause, self.binaries.busybox)
        return [test, pause]

    def _is_ready(self, name: str) -> bool:
        self.node(name).kubelet.require()
        node = self.kube.find(f"/api/v1/nodes/{name}")
        conditions = node["status"].get("conditions", []) if node else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _note(self, what: str) -> None:
        self.timings[what] = time.monotonic() - self._began
        self._say(f"{what} after {self.timings[what]:.1f} s")

    def _processes(self) -> list[Process]:
        plane = getattr(self, "control_plane", None)
        found = list(plane.processes) if plane else []
        return found + [process for node in self.nodes for process in node.processes]


def _by_resource(
    devices: Iterable[podresources_pb2.ContainerDevices],
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in devices:
        found.setdefault(entry.resource_name, []).extend(entry.device_ids)
    return found


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise PermissionError(
            "a cluster needs root for its namespaces, cgroups and bridges: use sudo, or a "
            "privileged container"
        )
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)} is not on PATH: install it (Debian: apt-get install iproute2 "
            "mount openssl util-linux)"
        )
