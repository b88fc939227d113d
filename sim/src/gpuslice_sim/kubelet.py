"""A simulated kubelet: its side of the device plugin protocol, for demos, tests and benchmarks.

    with Kubelet(directory) as kubelet:              # serves directory/kubelet.sock
        endpoint = kubelet.wait_for("aliyun.com/gpu-mem")
        pod = kubelet.admit(Pod("demo", [Container("main", {"aliyun.com/gpu-mem": 6})]))
        answer = kubelet.start_container(pod, "main")   # PreStartContainer, then the cached answer

It chooses devices like the real kubelet, and is as strict: registration connects to the plugin
before it answers, every device list replaces the previous one, messages over 4 MiB break the
stream, and a restart deletes every socket in the directory. Tests with the real kubelet are in
tests/cluster.
"""

from __future__ import annotations

import contextlib
import random
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.api import podresources_pb2 as pods_api
from gpuslice_sim.process import PATIENCE_SECONDS

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
DIAL_SECONDS = 10.0
PRE_START_SECONDS = 30.0
_RESOURCE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?$")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    requests: dict[str, int]
    init: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    containers: list[Container]
    namespace: str = "default"


@dataclass(slots=True)
class Allocation:
    """The devices of one resource that a container holds, and the answer of the plugin."""

    pod: Pod
    container: Container
    resource: str
    ids: list[str]
    response: api.ContainerAllocateResponse


class AdmissionError(Exception):
    """The pod fails permanently, like a pod with the reason UnexpectedAdmissionError."""


class StartError(Exception):
    """The container must not start now. The real kubelet retries later."""


@dataclass(slots=True)
class Endpoint:
    """A registered plugin."""

    resource: str
    socket: Path
    channel: grpc.Channel
    options: api.DevicePluginOptions
    health: dict[str, str] = field(default_factory=dict)
    lists: int = 0
    last_list_bytes: int = 0
    connected: bool = True
    error: str = ""

    def call(self, method: str, request: Any, reply: type[_T], timeout: float | None = None) -> _T:
        answer = self.call_raw(method, request.SerializeToString(), timeout)
        parsed: _T = reply.FromString(answer)  # type: ignore[attr-defined]
        return parsed

    def call_raw(self, method: str, payload: bytes, timeout: float | None = None) -> bytes:
        rpc: Any = self.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
        answer: bytes = rpc(payload, timeout=timeout)
        return answer


class Kubelet:
    def __init__(
        self, directory: Path, *, pod_resources: Path | None = None, seed: int = 0
    ) -> None:
        self.directory = directory
        self.pod_resources_socket = pod_resources
        self.registrations = 0
        self._random = random.Random(seed)
        self._endpoints: dict[str, Endpoint] = {}
        self._allocations: list[Allocation] = []
        self._changed = threading.Condition(threading.RLock())
        self._servers: list[grpc.Server] = []

    # Life cycle

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Deletes all sockets in the directory, then serves, like the kubelet when it starts."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a plugin removes its own
                if stat.S_ISSOCK(path.stat(follow_symlinks=False).st_mode):
                    path.unlink()
        registration = grpc.method_handlers_generic_handler(
            "v1beta1.Registration",
            {"Register": _unary(self._register, api.RegisterRequest, api.Empty)},
        )
        self._serve(self.directory / "kubelet.sock", registration)
        if self.pod_resources_socket is not None:
            lister = grpc.method_handlers_generic_handler(
                "v1.PodResourcesLister",
                {
                    "List": _unary(
                        self._list_pods,
                        pods_api.ListPodResourcesRequest,
                        pods_api.ListPodResourcesResponse,
                    ),
                    "Get": _unary(
                        self._get_pod,
                        pods_api.GetPodResourcesRequest,
                        pods_api.GetPodResourcesResponse,
                    ),
                    "GetAllocatableResources": _unary(
                        self._allocatable,
                        pods_api.AllocatableResourcesRequest,
                        pods_api.AllocatableResourcesResponse,
                    ),
                },
            )
            self.pod_resources_socket.parent.mkdir(parents=True, exist_ok=True)
            self.pod_resources_socket.unlink(missing_ok=True)
            self._serve(self.pod_resources_socket, lister)

    def stop(self) -> None:
        for server in self._servers:
            server.stop(grace=None).wait()
        self._servers.clear()
        with self._changed:
            endpoints = list(self._endpoints.values())
            self._endpoints.clear()
        for endpoint in endpoints:
            endpoint.channel.close()

    def restart(self) -> None:
        """Forgets plugins and devices. Allocations stay, as in the checkpoint of the kubelet."""
        self.stop()
        self.start()

    # Resources of plugins

    def resources(self) -> list[str]:
        with self._changed:
            return sorted(self._endpoints)

    def endpoint(self, resource: str) -> Endpoint | None:
        with self._changed:
            return self._endpoints.get(resource)

    def devices(self, resource: str) -> dict[str, str]:
        """Device id -> health in the last list. All are unhealthy after the stream has ended."""
        with self._changed:
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                return {}
            if not endpoint.connected:
                return dict.fromkeys(endpoint.health, "Unhealthy")
            return dict(endpoint.health)

    def capacity(self, resource: str) -> int:
        return len(self.devices(resource))

    def allocatable(self, resource: str) -> int:
        return sum(health == "Healthy" for health in self.devices(resource).values())

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str = "the condition",
        timeout: float = PATIENCE_SECONDS,
    ) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited {timeout:g} s for {what}")
                self._changed.wait(min(left, 0.5))

    def wait_for(self, resource: str, timeout: float = PATIENCE_SECONDS) -> Endpoint:
        """Waits until the resource is registered and its first list has arrived."""

        def listed() -> bool:
            endpoint = self.endpoint(resource)
            return endpoint is not None and endpoint.connected and endpoint.lists > 0

        self.wait_until(listed, f"{resource} to be registered and listed", timeout)
        endpoint = self.endpoint(resource)
        assert endpoint is not None
        return endpoint

    # Pods

    def admit(self, pod: Pod) -> list[Allocation]:
        """Allocates devices for all containers or for none, init containers first."""
        admitted: list[Allocation] = []
        ordered = [c for c in pod.containers if c.init] + [c for c in pod.containers if not c.init]
        try:
            for container in ordered:
                for resource, count in container.requests.items():
                    if count > 0:
                        admitted.append(self._allocate(pod, container, resource, count, admitted))
        except AdmissionError:
            raise
        except grpc.RpcError as error:
            raise AdmissionError(f"Allocate failed due to {_describe(error)}") from error
        with self._changed:
            self._allocations.extend(admitted)
        return admitted

    def start_container(self, pod: Pod, container: str) -> api.ContainerAllocateResponse:
        """Starts a container: calls PreStartContainer and returns the cached answer."""
        merged = api.ContainerAllocateResponse()
        for allocation in self.allocations(pod, container):
            endpoint = self.endpoint(allocation.resource)
            if endpoint is None:
                raise StartError(f"no plugin is registered for {allocation.resource}")
            if endpoint.options.pre_start_required:
                request = api.PreStartContainerRequest(devices_ids=allocation.ids)
                try:
                    endpoint.call(
                        "PreStartContainer",
                        request,
                        api.PreStartContainerResponse,
                        PRE_START_SECONDS,
                    )
                except grpc.RpcError as error:
                    raise StartError(_describe(error)) from error
            merged.MergeFrom(allocation.response)
        return merged

    def remove(self, pod: Pod) -> None:
        with self._changed:
            self._allocations = [a for a in self._allocations if a.pod is not pod]

    def allocations(self, pod: Pod | None = None, container: str = "") -> list[Allocation]:
        with self._changed:
            return [
                a
                for a in self._allocations
                if (pod is None or a.pod is pod) and container in ("", a.container.name)
            ]

    def _allocate(
        self,
        pod: Pod,
        container: Container,
        resource: str,
        count: int,
        admitted: list[Allocation],
    ) -> Allocation:
        endpoint = self.endpoint(resource)
        if endpoint is None:
            raise AdmissionError(f"no plugin is registered for {resource}")
        reusable = set() if container.init else self._held_by_init(resource, admitted)
        ids = self._pick(endpoint, resource, count, reusable, admitted)
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        reply = endpoint.call("Allocate", request, api.AllocateResponse)
        if len(reply.container_responses) != 1:
            raise AdmissionError(
                f"{resource}: {len(reply.container_responses)} answers for one container"
            )
        return Allocation(pod, container, resource, ids, reply.container_responses[0])

    @staticmethod
    def _held_by_init(resource: str, admitted: list[Allocation]) -> set[str]:
        held = {i for a in admitted if a.container.init and a.resource == resource for i in a.ids}
        taken = {i for a in admitted if not a.container.init for i in a.ids}
        return held - taken

    def _pick(
        self,
        endpoint: Endpoint,
        resource: str,
        count: int,
        reusable: set[str],
        admitted: list[Allocation],
    ) -> list[str]:
        chosen = sorted(reusable)
        self._random.shuffle(chosen)
        chosen = chosen[:count]
        needed = count - len(chosen)
        if needed == 0:
            return chosen
        with self._changed:
            held = {
                i for a in (*self._allocations, *admitted) if a.resource == resource for i in a.ids
            }
        free = [i for i, h in self.devices(resource).items() if h == "Healthy" and i not in held]
        if len(free) < needed:
            raise AdmissionError(
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(free)}, which is unexpected"
            )
        if endpoint.options.get_preferred_allocation_available:
            preferred = self._preferred(endpoint, free + chosen, chosen, count)
            chosen += [i for i in preferred if i in set(free)][:needed]
        rest = [i for i in free if i not in set(chosen)]
        self._random.shuffle(rest)
        return chosen + rest[: count - len(chosen)]

    @staticmethod
    def _preferred(
        endpoint: Endpoint, available: list[str], must_include: list[str], size: int
    ) -> list[str]:
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must_include,
                    allocation_size=size,
                )
            ]
        )
        reply = endpoint.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        return list(reply.container_responses[0].deviceIDs) if reply.container_responses else []

    # Registration

    def _register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        if request.version != "v1beta1":
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"API version {request.version!r} is not supported, use v1beta1",
            )
        if not _RESOURCE_NAME.match(request.resource_name):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the ResourceName {request.resource_name!r} is invalid",
            )
        socket = self.directory / request.endpoint
        with self._changed:
            known = self._endpoints.get(request.resource_name)
            if known is not None and known.connected and known.socket == socket:
                context.abort(grpc.StatusCode.UNKNOWN, "device plugin already connected")
        channel = grpc.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        endpoint = Endpoint(request.resource_name, socket, channel, api.DevicePluginOptions())
        try:
            grpc.channel_ready_future(channel).result(timeout=DIAL_SECONDS)
            endpoint.options = endpoint.call(
                "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions, DIAL_SECONDS
            )
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            channel.close()
            context.abort(
                grpc.StatusCode.UNKNOWN, f"failed to dial device plugin {socket.name}: {error}"
            )
        with self._changed:
            self._endpoints[request.resource_name] = endpoint
            self.registrations += 1
            self._changed.notify_all()
        threading.Thread(target=self._watch, args=(endpoint,), daemon=True).start()
        return api.Empty()

    def _watch(self, endpoint: Endpoint) -> None:
        stream = endpoint.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=bytes,
        )(api.Empty())
        try:
            for payload in stream:
                message = api.ListAndWatchResponse.FromString(payload)
                with self._changed:
                    endpoint.health = {device.ID: device.health for device in message.devices}
                    endpoint.lists += 1
                    endpoint.last_list_bytes = len(payload)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            endpoint.error = _describe(error)
        except ValueError:  # the channel was closed before the stream was opened
            endpoint.error = "closed"
        with self._changed:
            endpoint.connected = False
            self._changed.notify_all()

    # Pod resources

    def _list_pods(
        self, request: pods_api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.ListPodResourcesResponse:
        del request, context
        return pods_api.ListPodResourcesResponse(pod_resources=self._pod_resources())

    def _get_pod(
        self, request: pods_api.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.GetPodResourcesResponse:
        for pod in self._pod_resources():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pods_api.GetPodResourcesResponse(pod_resources=pod)
        return context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} not found")

    def _allocatable(
        self, request: pods_api.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.AllocatableResourcesResponse:
        del request, context
        return pods_api.AllocatableResourcesResponse(
            devices=[
                pods_api.ContainerDevices(resource_name=resource, device_ids=[device])
                for resource in self.resources()
                for device, health in sorted(self.devices(resource).items())
                if health == "Healthy"
            ]
        )

    def _pod_resources(self) -> Iterator[pods_api.PodResources]:
        allocations = self.allocations()
        pods = {id(a.pod): a.pod for a in allocations}
        for key, pod in pods.items():
            listed = pods_api.PodResources(name=pod.name, namespace=pod.namespace)
            for container in pod.containers:
                if container.init:  # the kubelet does not report init containers
                    continue
                entry = listed.containers.add(name=container.name)
                for a in allocations:
                    if id(a.pod) == key and a.container is container:
                        for device in a.ids:
                            entry.devices.add(resource_name=a.resource, device_ids=[device])
            yield listed

    def _serve(self, socket: Path, handler: grpc.GenericRpcHandler) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)


def _unary(
    behaviour: Callable[[Any, grpc.ServicerContext], Any], request: type[Any], reply: type[Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=reply.SerializeToString,
    )


def _describe(error: grpc.RpcError) -> str:
    """The text that the kubelet would write to the event of the pod."""
    call: Any = error  # the error of a call is also a grpc.Call
    return f"rpc error: code = {call.code().name} desc = {call.details()}"
