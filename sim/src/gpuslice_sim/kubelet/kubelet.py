"""The kubelet: registered plugins, admitted pods and their devices."""

from __future__ import annotations

import contextlib
import random
import re
import stat
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import services
from gpuslice_sim.kubelet.cdi_runtime import CdiRuntime, UnresolvableDevices
from gpuslice_sim.kubelet.checkpoint import write_checkpoint
from gpuslice_sim.kubelet.device_choice import choose, held_by_init
from gpuslice_sim.kubelet.endpoint import DialError, Endpoint, connect, describe
from gpuslice_sim.kubelet.pods import AdmissionError, Allocation, Container, Pod, StartError
from gpuslice_sim.process import PATIENCE_SECONDS

_PRE_START_SECONDS = 30.0
_RESOURCE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?$")


class Kubelet:
    def __init__(
        self,
        directory: Path,
        *,
        pod_resources: Path | None = None,
        runtime: CdiRuntime | None = None,
        seed: int = 0,
    ) -> None:
        """Without `runtime`, containers are created by a runtime that ignores CDI."""
        self.directory = directory
        self.runtime = runtime
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
        self._serve(self.directory / "kubelet.sock", services.registration(self._register))
        if self.pod_resources_socket is not None:
            self.pod_resources_socket.parent.mkdir(parents=True, exist_ok=True)
            self.pod_resources_socket.unlink(missing_ok=True)
            self._serve(self.pod_resources_socket, services.pod_resources(self))

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
            raise AdmissionError(f"Allocate failed due to {describe(error)}") from error
        with self._changed:
            self._allocations.extend(admitted)
            write_checkpoint(self.directory, self._allocations)
        return admitted

    def start_container(self, pod: Pod, container: str) -> api.ContainerAllocateResponse:
        """Starts a container: calls PreStartContainer and creates it from the cached answer.

        Returns what the container has: variables of the pod replace those of the answer.
        """
        merged = api.ContainerAllocateResponse()
        own_env: dict[str, str] = {}
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
                        _PRE_START_SECONDS,
                    )
                except grpc.RpcError as error:
                    raise StartError(describe(error)) from error
            merged.MergeFrom(allocation.response)
            own_env = allocation.container.env
        if self.runtime is not None:
            try:
                return self.runtime.create(merged, own_env)
            except UnresolvableDevices as error:
                raise StartError(str(error)) from error
        merged.envs.update(own_env)
        return merged

    def remove(self, pod: Pod) -> None:
        with self._changed:
            self._allocations = [a for a in self._allocations if a.pod is not pod]
            write_checkpoint(self.directory, self._allocations)

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
        ids = choose(
            endpoint,
            count,
            free=self._free(resource, admitted),
            reusable=set() if container.init else held_by_init(resource, admitted),
            rng=self._random,
        )
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        reply = endpoint.call("Allocate", request, api.AllocateResponse)
        if len(reply.container_responses) != 1:
            raise AdmissionError(
                f"{resource}: {len(reply.container_responses)} answers for one container"
            )
        return Allocation(pod, container, resource, ids, reply.container_responses[0])

    def _free(self, resource: str, admitted: list[Allocation]) -> list[str]:
        """Healthy devices that no container holds."""
        with self._changed:
            held = {
                i for a in (*self._allocations, *admitted) if a.resource == resource for i in a.ids
            }
        return [i for i, h in self.devices(resource).items() if h == "Healthy" and i not in held]

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
        try:
            endpoint = connect(request.resource_name, socket)
        except DialError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        with self._changed:
            self._endpoints[request.resource_name] = endpoint
            self.registrations += 1
            self._changed.notify_all()
        threading.Thread(target=self._watch, args=(endpoint,), daemon=True).start()
        return api.Empty()

    def _watch(self, endpoint: Endpoint) -> None:
        for payload in endpoint.device_lists():
            message = api.ListAndWatchResponse.FromString(payload)
            with self._changed:
                endpoint.health = {device.ID: device.health for device in message.devices}
                endpoint.lists += 1
                endpoint.last_list_bytes = len(payload)
                self._changed.notify_all()
        with self._changed:
            endpoint.connected = False
            self._changed.notify_all()

    def _serve(self, socket: Path, handler: grpc.GenericRpcHandler) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)
