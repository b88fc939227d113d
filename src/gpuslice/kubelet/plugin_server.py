"""Serves a resource to the kubelet and keeps it registered across restarts of the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuslice.codes import Code
from gpuslice.files.lock import LockHeld, lock_directory
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.errors import AlreadyServed, PluginServerError
from gpuslice.kubelet.plugin_service import DevicePluginService, Resource, device_plugin_handler
from gpuslice.kubelet.refusal_delay import RefusalDelay
from gpuslice.kubelet.wire import API_VERSION, DeviceListEncoder
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

_PROBE_SECONDS = 2.0
# For calls in progress when the server stops.
_GRACE_SECONDS = 1.0
# The kubelet connects back during this call, for up to 10 s.
_REGISTER_SECONDS = 15.0
_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 10.0
# Far more than the containers of a node.
_MOST_WAITING_REQUESTS = 10_000
# GetPreferredAllocation names every free device, and those that it must include. The list of all
# devices fits into one message.
_LONGEST_REQUEST_BYTES = 2 * MESSAGE_LIMIT_BYTES
_LOCK = "lock"


# Device, inode and time of a file: distinguishes a recreated one from the old one, even if the
# inode number is reused.
_Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why the server stopped; `stream_of` is the kubelet that ended the stream, if it did."""

    reason: str
    stream_of: _Identity | None = None


class PluginServer:
    """One resource, one socket, one registration.

    It serves before it registers, because the kubelet calls back at once, and it stops serving
    before it registers again, because the end of an old stream would end the new registration.
    """

    def __init__(
        self,
        resource: Resource,
        kubelet_socket: Path,
        socket_name: str,
        metrics: Metrics,
        refusal_seconds: float,
    ) -> None:
        self._resource = resource
        self._metrics = metrics
        self._refusal_delay = RefusalDelay(refusal_seconds)
        self._kubelet_socket = kubelet_socket
        self._socket = kubelet_socket.parent / socket_name
        self._wake = asyncio.Event()
        self._encoder = DeviceListEncoder()
        self._conditions = Conditions(log)

    def wake(self) -> None:
        """Call it after every change in the kubelet's directory."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled, and removes the socket then."""
        delay = _FIRST_DELAY_SECONDS
        while True:
            await self._directory_exists()
            began = asyncio.get_running_loop().time()
            ended = await self._serve_once()
            log.warning(
                Code.PLUGIN_SERVER_RESTARTING,
                "restarting device plugin server",
                resource=self._resource.name,
                reason=ended.reason,
            )
            lasted = asyncio.get_running_loop().time() - began
            if lasted < _FIRST_DELAY_SECONDS:  # never a busy loop
                await asyncio.sleep(_FIRST_DELAY_SECONDS)
            delay = _FIRST_DELAY_SECONDS if lasted > _LONGEST_DELAY_SECONDS else _doubled(delay)
            if ended.stream_of is None or await self._is_replaced(ended.stream_of, within=delay):
                delay = _FIRST_DELAY_SECONDS

    async def _directory_exists(self) -> None:
        """The kubelet creates it. If we did, we would hide a wrong path."""
        directory = self._socket.parent
        if directory.is_dir():
            return
        log.warning(
            Code.WAITING_FOR_KUBELET, "waiting for the kubelet's directory", directory=directory
        )
        while not directory.is_dir():
            self._wake.clear()
            await self._wake.wait()

    async def _is_replaced(self, kubelet: _Identity, within: float) -> bool:
        """Waits, because this kubelet would end the next stream as well; a new one might not."""
        try:
            async with asyncio.timeout(within):
                while _identity(self._kubelet_socket) in (None, kubelet):
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _serve_once(self) -> _Ended:
        """Serves and registers until there is a reason to restart."""
        stream_ended = asyncio.Event()

        def on_stream_end() -> None:
            stream_ended.set()
            self._wake.set()

        service = DevicePluginService(
            self._resource, self._encoder, on_stream_end, self._metrics, self._refusal_delay
        )
        server = await self._listen(service)
        if server is None:
            return _Ended("the kubelet's directory was removed")
        own = _identity(self._socket)
        try:
            return await self._stay_registered(own, service, stream_ended)
        finally:
            self._metrics.registered(self._resource.name, False)
            service.end_streams()
            await server.stop(grace=_GRACE_SECONDS)
            if own is not None and _identity(self._socket) == own:
                self._socket.unlink(missing_ok=True)

    async def _stay_registered(
        self, own: _Identity | None, service: DevicePluginService, stream_ended: asyncio.Event
    ) -> _Ended:
        registered_with = None
        delay = _FIRST_DELAY_SECONDS
        if _identity(self._kubelet_socket) is None:
            log.warning(
                Code.WAITING_FOR_KUBELET, "waiting for the kubelet", socket=self._kubelet_socket
            )
        while True:
            self._wake.clear()
            kubelet = _identity(self._kubelet_socket)
            if own is None or _identity(self._socket) != own:
                return _Ended("the plugin's socket was removed")
            if registered_with is not None and kubelet not in (None, registered_with):
                return _Ended("the kubelet restarted")
            if registered_with is not None and stream_ended.is_set():
                return _Ended("the kubelet ended the device stream", registered_with)
            if registered_with is None and kubelet is not None:
                stream_ended.clear()
                if await self._register(service):
                    registered_with = kubelet
                    continue
                delay = _doubled(delay)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if registered_with else delay):
                    await self._wake.wait()

    async def _listen(self, service: DevicePluginService) -> grpc.aio.Server | None:
        """None if the directory was removed meanwhile, for example by a new installation."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _LONGEST_REQUEST_BYTES),
                ("grpc.so_reuseport", 0),
                # From 1,000 waiting requests on, gRPC cancels some of them at random otherwise.
                ("grpc.server.max_pending_requests", _MOST_WAITING_REQUESTS),
                ("grpc.server.max_pending_requests_hard_limit", 2 * _MOST_WAITING_REQUESTS),
            ]
        )
        server.add_generic_rpc_handlers((device_plugin_handler(service),))
        try:
            async with lock_directory(self._socket.parent, self._waits_for_lock):
                self._conditions.clear(_LOCK)
                await self._refuse_if_served()
                self._socket.unlink(missing_ok=True)
                server.add_insecure_port(f"unix:{self._socket}")
                await server.start()
        except (OSError, RuntimeError) as error:  # gRPC reports a failed bind as a RuntimeError
            if not self._socket.parent.is_dir():
                return None
            raise PluginServerError(
                f"the socket {self._socket} cannot be created ({error}): mount the kubelet's "
                "directory and make it writable for this process"
            ) from error
        return server

    def _waits_for_lock(self, held: LockHeld) -> None:
        """Without the lock, two agents could both find no live socket and both create one."""
        self._conditions.set(
            _LOCK,
            Code.DIRECTORY_LOCKED,
            "waiting for a lock before the socket is created",
            held.strerror,
            resource=self._resource.name,
            directory=self._socket.parent,
        )

    async def _refuse_if_served(self) -> None:
        """A socket that answers belongs to a running process; a stale one refuses connections."""
        if not self._socket.exists():
            return
        async with _channel(self._socket) as channel:
            call = channel.unary_unary(
                "/v1beta1.DevicePlugin/GetDevicePluginOptions",
                request_serializer=api.Empty.SerializeToString,
                response_deserializer=api.DevicePluginOptions.FromString,
            )
            try:
                await call(api.Empty(), timeout=_PROBE_SECONDS)
            except grpc.RpcError:
                return
        raise AlreadyServed(
            f"another process serves {self._resource.name} on {self._socket}: stop it first "
            "(two agents for one resource would allocate the same GPUs)"
        )

    async def _register(self, service: DevicePluginService) -> bool:
        await self._resource.before_registration()
        service.registering()
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=self._socket.name,
            resource_name=self._resource.name,
            options=api.DevicePluginOptions(
                pre_start_required=self._resource.pre_start_required,
                get_preferred_allocation_available=True,
            ),
        )
        async with _channel(self._kubelet_socket) as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            try:
                await call(request, timeout=_REGISTER_SECONDS)
            except grpc.aio.AioRpcError as error:
                log.warning(
                    Code.REGISTRATION_FAILED,
                    "the kubelet rejected the registration, retrying",
                    resource=self._resource.name,
                    status=error.code().name,
                    reason=error.details(),
                )
                return False
        self._metrics.registered(self._resource.name, True)
        log.info(
            Code.REGISTERED,
            "registered with the kubelet",
            resource=self._resource.name,
            socket=self._socket,
        )
        return True


def _channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        f"unix:{socket}",
        options=[
            ("grpc.default_authority", "localhost"),
            # A shared connection would back off after the kubelet was down.
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


def _doubled(delay: float) -> float:
    return min(delay * 2, _LONGEST_DELAY_SECONDS)


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
