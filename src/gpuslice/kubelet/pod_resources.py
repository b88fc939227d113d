"""Reads from the kubelet which containers hold which devices."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuslice.kubelet.api import podresources_pb2 as api
from gpuslice.slicing.holders import Holder

_LIST_SECONDS = 5.0
# The kubelet rejects bursts of requests.
_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)

# Containers by resource.
Holders = Mapping[str, tuple[Holder, ...]]


class PodResourcesError(Exception):
    """The kubelet does not answer; the message states the remedy."""


def pod_resources_socket(kubelet_socket: Path) -> Path:
    """Both sockets have their place below the kubelet's root directory."""
    return kubelet_socket.parent.parent / "pod-resources" / "kubelet.sock"


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """A container, and the ids of its devices by resource."""

    namespace: str
    pod: str
    container: str
    devices: Mapping[str, frozenset[str]]


class PodResources:
    """The pod resources API is a list that callers poll: it has no watch."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def devices_in_use(self) -> Mapping[str, frozenset[str]]:
        """Device ids by resource. Raises PodResourcesError."""
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for container in await self.containers():
            for resource, held in container.devices.items():
                ids[resource].update(held)
        return {resource: frozenset(held) for resource, held in ids.items()}

    async def holders(self) -> Holders:
        """The containers that hold devices; without init containers. Raises PodResourcesError."""
        held: defaultdict[str, list[Holder]] = defaultdict(list)
        for container in await self.containers():
            for resource, ids in container.devices.items():
                pod = f"{container.namespace}/{container.pod}"
                held[resource].append(Holder(pod, container.container, ids))
        return {resource: tuple(some) for resource, some in held.items()}

    async def containers(self) -> tuple[ContainerDevices, ...]:
        """Every container of the node, with or without devices. Raises PodResourcesError."""
        if not self._socket.exists():
            raise PodResourcesError(
                f"{self._socket} does not exist: mount the kubelet's pod-resources directory into "
                "this container, next to its device-plugins directory"
            )
        try:
            response = await self._list_with_retries()
        except grpc.aio.AioRpcError as error:
            raise PodResourcesError(
                f"the kubelet does not list its containers at {self._socket} "
                f"({error.code().name}: {error.details()})"
            ) from error
        return tuple(
            ContainerDevices(pod.namespace, pod.name, container.name, _devices(container))
            for pod in response.pod_resources
            for container in pod.containers
        )

    async def _list_with_retries(self) -> api.ListPodResourcesResponse:
        for seconds in _RETRY_SECONDS:
            try:
                return await self._list()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            await asyncio.sleep(seconds)
        return await self._list()

    async def _list(self) -> api.ListPodResourcesResponse:
        options = [
            ("grpc.default_authority", "localhost"),
            # The list contains every device id that is in use.
            ("grpc.max_receive_message_length", -1),
        ]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            call = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=api.ListPodResourcesRequest.SerializeToString,
                response_deserializer=api.ListPodResourcesResponse.FromString,
            )
            response: api.ListPodResourcesResponse = await call(
                api.ListPodResourcesRequest(), timeout=_LIST_SECONDS
            )
            return response


class SharedList:
    """One list for all containers that start at the same time.

    A caller never gets a list that was started before its call: the container may be missing.
    """

    def __init__(self) -> None:
        self._running: asyncio.Task[Holders] | None = None
        self._next: asyncio.Task[Holders] | None = None

    async def holders(self, pod_resources: PodResources) -> Holders:
        """Raises PodResourcesError."""
        if self._next is None:
            self._next = asyncio.create_task(self._list_after(self._running, pod_resources))
        # A caller that is cancelled leaves the list to the others.
        return await asyncio.shield(self._next)

    async def _list_after(
        self, running: asyncio.Task[Holders] | None, pod_resources: PodResources
    ) -> Holders:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await pod_resources.holders()


def _devices(container: api.ContainerResources) -> dict[str, frozenset[str]]:
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for devices in container.devices:
        ids[devices.resource_name].update(devices.device_ids)
    return {resource: frozenset(held) for resource, held in ids.items()}
