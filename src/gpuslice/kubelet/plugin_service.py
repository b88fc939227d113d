"""The DevicePlugin service: passes the kubelet's calls on to a resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from gpuslice.codes import Code
from gpuslice.inject.edits import ContainerEdits
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.refusal_delay import RefusalDelay
from gpuslice.kubelet.watchable import Watchable
from gpuslice.kubelet.wire import DeviceGroup, DeviceListEncoder, allocate_response
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

_M = TypeVar("_M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class Refused(Exception):
    """The resource refuses a request. Code and message reach the user as an event of the pod."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Resource(Protocol):
    """What the kubelet can request of a resource, independent of gRPC."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> Watchable[tuple[DeviceGroup, ...]]: ...

    @property
    def tier(self) -> str | None:
        """How firmly the limits of its containers hold; None: they have none, or not known yet."""
        ...

    @property
    def pre_start_required(self) -> bool:
        """Whether the kubelet must call `pre_start` before each start of a container."""
        ...

    @property
    def longest_request(self) -> int:
        """In bytes. A longer request names devices that do not exist, or some of them twice."""
        ...

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]: ...

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Raises Refused."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Raises Refused."""
        ...

    async def before_registration(self) -> None:
        """Called before the kubelet reads the device list for the first time."""
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
            # We encode lists and answers ourselves: once per state, and with equal bytes. We decode
            # requests ourselves: one that is too long costs many times its size once it is decoded.
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                service.list_and_watch, request_deserializer=api.Empty.FromString
            ),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(
                service.prefer,
                response_serializer=api.PreferredAllocationResponse.SerializeToString,
            ),
            "Allocate": grpc.unary_unary_rpc_method_handler(service.allocate),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(
                service.pre_start,
                response_serializer=api.PreStartContainerResponse.SerializeToString,
            ),
        },
    )


class DevicePluginService:
    """`stream_ended` is called when the kubelet's ListAndWatch stream has ended.

    Other clients may have streams as well, and gRPC does not tell clients of a socket apart. The
    kubelet opens its stream when it is asked to register the resource, so the first stream after
    that is the kubelet's.
    """

    def __init__(
        self,
        resource: Resource,
        encoder: DeviceListEncoder,
        stream_ended: Callable[[], None],
        metrics: Metrics,
        refusal_delay: RefusalDelay,
    ) -> None:
        self._resource = resource
        self._encoder = encoder
        self._metrics = metrics
        self._refusal_delay = refusal_delay
        self._stream_ended = stream_ended
        self._kubelet_is_next = False
        # Which registration the kubelet's stream belongs to.
        self._registration = 0
        self._closing = False

    def registering(self) -> None:
        """Call it before each registration. The stream of an earlier one does not matter then."""
        self._registration += 1
        self._kubelet_is_next = True

    def end_streams(self) -> None:
        """Ends every open stream without an error."""
        self._closing = True
        self._resource.devices.wake()

    async def options(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:
        del request, context
        return api.DevicePluginOptions(
            pre_start_required=self._resource.pre_start_required,
            get_preferred_allocation_available=True,
        )

    async def list_and_watch(self, request: api.Empty, context: Context) -> AsyncIterator[bytes]:
        del request, context
        is_kubelet, self._kubelet_is_next = self._kubelet_is_next, False
        registration = self._registration
        try:
            async for groups in self._resource.devices.watch(until=lambda: self._closing):
                devices = self._encoder.encode(groups)
                log.debug(Code.DEVICE_LIST_SENT, "sending device list", bytes=len(devices))
                yield devices
        finally:
            if is_kubelet and registration == self._registration:
                self._stream_ended()

    async def prefer(self, raw: bytes, context: Context) -> api.PreferredAllocationResponse:
        request = await self._decoded(api.PreferredAllocationRequest, raw, context)
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
            # This is advice: an error would fail the admission of the pod.
            log.exception(Code.PREFERENCE_FAILED, "GetPreferredAllocation failed")
            return list(container.must_include_deviceIDs)

    async def allocate(self, raw: bytes, context: Context) -> bytes:
        request = await self._decoded(api.AllocateRequest, raw, context)
        containers = [list(container.devices_ids) for container in request.container_requests]
        try:
            answers = await self._resource.allocate(containers)
        except Refused as refusal:
            name = self._resource.name
            log.warning(refusal.code, "Allocate rejected", resource=name, reason=refusal)
            self._metrics.allocated(name, False)
            await self._refusal_delay.wait()
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _details(refusal))
        # The container waits for the answer, not for the log line.
        asyncio.get_running_loop().call_soon(self._allocated, answers)
        return allocate_response(answers)

    def _allocated(self, answers: Sequence[ContainerEdits]) -> None:
        tier = self._resource.tier
        known = {} if tier is None else {"tier": tier}
        for answer in answers:
            log.info(
                Code.ALLOCATED,
                "allocated",
                resource=self._resource.name,
                **known,
                **_summary(answer),
            )
        self._metrics.allocated(self._resource.name, True)

    async def pre_start(self, raw: bytes, context: Context) -> api.PreStartContainerResponse:
        request = await self._decoded(api.PreStartContainerRequest, raw, context)
        try:
            await self._resource.pre_start(list(request.devices_ids))
        except Refused as refusal:
            name = self._resource.name
            log.warning(refusal.code, "PreStartContainer rejected", resource=name, reason=refusal)
            await context.abort(grpc.StatusCode.UNAVAILABLE, _details(refusal))
        return api.PreStartContainerResponse()

    async def _decoded(self, kind: type[_M], raw: bytes, context: Context) -> _M:
        longest = self._resource.longest_request
        if len(raw) > longest:
            name = self._resource.name
            refusal = Refused(
                Code.REQUEST_TOO_LONG,
                f"invalid request for {name}: it has {len(raw)} bytes, and a request that names "
                f"each device of this node once has at most {longest}",
            )
            log.warning(refusal.code, "request rejected", resource=name, reason=refusal)
            await self._refusal_delay.wait()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _details(refusal))
        try:
            return kind.FromString(raw)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"invalid request: {error}")
            raise  # abort has raised


def _details(refusal: Refused) -> str:
    return f"{refusal.code}: {refusal}"


def _summary(answer: ContainerEdits) -> dict[str, str]:
    """For the log: variables, and CDI names, which no variable contains."""
    named = ",".join(answer.cdi_devices) or ",".join(answer.annotations.values())
    return answer.env | ({"cdi": named} if named else {})
