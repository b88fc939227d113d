"""A registered plugin: its socket, its options and its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from gpuslice.kubelet.api import deviceplugin_pb2 as api

_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_DIAL_SECONDS = 10.0

_T = TypeVar("_T")


class DialError(Exception):
    """The socket of a plugin does not answer."""


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

    def device_lists(self) -> Iterator[bytes]:
        """The messages of ListAndWatch. At the end of the stream, `error` says why it ended."""
        stream = self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=bytes,
        )
        try:
            yield from stream(api.Empty())
        except grpc.RpcError as error:
            self.error = describe(error)
        except ValueError:  # the channel was closed before the stream was opened
            self.error = "closed"


def connect(resource: str, socket: Path) -> Endpoint:
    """Dials the plugin and reads its options, like the kubelet before it answers Register."""
    channel = grpc.insecure_channel(
        f"unix:{socket}",
        options=[
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )
    endpoint = Endpoint(resource, socket, channel, api.DevicePluginOptions())
    try:
        grpc.channel_ready_future(channel).result(timeout=_DIAL_SECONDS)
        endpoint.options = endpoint.call(
            "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions, _DIAL_SECONDS
        )
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        channel.close()
        raise DialError(f"failed to dial device plugin {socket.name}: {error}") from error
    return endpoint


def describe(error: grpc.RpcError) -> str:
    """The text that the kubelet would write to the event of the pod."""
    call: Any = error  # the error of a call is also a grpc.Call
    return f"rpc error: code = {call.code().name} desc = {call.details()}"
