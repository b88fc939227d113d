"""The DevicePlugin service: turns the kubelet's calls into questions to a resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import grpc

from gpuslice.kubelet.answer import ContainerAnswer
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.latest import Latest
from gpuslice.kubelet.wire import allocate_response
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class Refused(Exception):
    """The resource says no; the text reaches the user through the pod's event."""


class Resource(Protocol):
    """What the kubelet can ask of a resource. It knows nothing of gRPC."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> Latest[bytes]:
        """The encoded device list."""
        ...

    @property
    def checks_before_start(self) -> bool:
        """Whether containers may start only after `before_start` agreed."""
        ...

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]: ...

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        """Raises Refused."""
        ...

    async def before_start(self, ids: Sequence[str]) -> None:
        """Raises Refused."""
        ...


def device_plugin_handler(service: DevicePluginService) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin",
        {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                service.options,
                request_deserializer=api.Empty.FromString,
                response_serializer=api.DevicePluginOptions.SerializeToString,
            ),
            # Lists and answers are encoded by us: once per state, and with equal bytes.
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                service.list_and_watch, request_deserializer=api.Empty.FromString
            ),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(
                service.prefer,
                request_deserializer=api.PreferredAllocationRequest.FromString,
                response_serializer=api.PreferredAllocationResponse.SerializeToString,
            ),
            "Allocate": grpc.unary_unary_rpc_method_handler(
                service.allocate, request_deserializer=api.AllocateRequest.FromString
            ),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(
                service.pre_start,
                request_deserializer=api.PreStartContainerRequest.FromString,
                response_serializer=api.PreStartContainerResponse.SerializeToString,
            ),
        },
    )


class DevicePluginService:
    """`streams_ended` is called when the last open device stream has ended."""

    def __init__(
        self, resource: Resource, streams_ended: Callable[[], None], metrics: Metrics
    ) -> None:
        self._resource = resource
        self._metrics = metrics
        self._streams_ended = streams_ended
        self._streams = 0
        self._closing = False

    def end_streams(self) -> None:
        """Lets every open stream end in good order."""
        self._closing = True
        self._resource.devices.wake()

    async def options(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:
        del request, context
        return api.DevicePluginOptions(
            pre_start_required=self._resource.checks_before_start,
            get_preferred_allocation_available=True,
        )

    async def list_and_watch(self, request: api.Empty, context: Context) -> AsyncIterator[bytes]:
        del request, context
        self._streams += 1
        try:
            async for devices in self._resource.devices.follow(until=lambda: self._closing):
                log.debug("sending the device list", bytes=len(devices))
                yield devices
        finally:
            self._streams -= 1
            if self._streams == 0:
                self._streams_ended()

    async def prefer(
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        del context
        response = api.PreferredAllocationResponse()
        for container in request.container_requests:
            response.container_responses.add(deviceIDs=self._prefer(container))
        return response

    def _prefer(self, container: api.ContainerPreferredAllocationRequest) -> list[str]:
        try:
            return self._resource.prefer(
                list(container.available_deviceIDs),
                list(container.must_include_deviceIDs),
                container.allocation_size,
            )
        except Exception:
            # An error here would fail the pod's admission over what is only advice.
            log.exception("no preference: the kubelet chooses by itself")
            return list(container.must_include_deviceIDs)

    async def allocate(self, request: api.AllocateRequest, context: Context) -> bytes:
        containers = [list(container.devices_ids) for container in request.container_requests]
        try:
            answers = self._resource.allocate(containers)
        except Refused as refusal:
            log.warning("refused an allocation", resource=self._resource.name, reason=refusal)
            self._metrics.allocated(self._resource.name, False)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        # The container waits for the answer and not for the line about it.
        asyncio.get_running_loop().call_soon(self._allocated, answers)
        return allocate_response(answers)

    def _allocated(self, answers: Sequence[ContainerAnswer]) -> None:
        for answer in answers:
            log.info("allocated", resource=self._resource.name, **_facts(answer))
        self._metrics.allocated(self._resource.name, True)

    async def pre_start(
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        try:
            await self._resource.before_start(list(request.devices_ids))
        except Refused as refusal:
            log.warning("held a container back", resource=self._resource.name, reason=refusal)
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(refusal))
        return api.PreStartContainerResponse()


def _facts(answer: ContainerAnswer) -> dict[str, str]:
    """What the log says of an answer: variables, and names where no variable tells the devices."""
    named = ",".join(answer.cdi_devices) or ",".join(answer.annotations.values())
    return answer.env | ({"cdi": named} if named else {})
