"""The baseline: a device plugin on grpcio that returns constants and uses no GPU.

usage: bare_plugin.py KUBELET_SOCKET DEVICES
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from gpuslice.kubelet.api import deviceplugin_pb2 as api

RESOURCE = "bench.gpuslice.dev/bare"
_GPUS = 8


async def main(kubelet: Path, count: int) -> None:
    per_gpu = count // _GPUS
    uuids = [f"GPU-00000000-0000-0000-0000-{gpu:012}" for gpu in range(_GPUS)]
    ids = [f"{uuid}-_-{unit}" for uuid in uuids for unit in range(per_gpu)]
    devices = api.ListAndWatchResponse(
        devices=[api.Device(ID=device, health="Healthy") for device in ids]
    ).SerializeToString()
    answer = api.AllocateResponse(
        container_responses=[
            api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": uuids[0]})
        ]
    ).SerializeToString()
    preferred = api.PreferredAllocationResponse(
        container_responses=[api.ContainerPreferredAllocationResponse(deviceIDs=ids[:4])]
    ).SerializeToString()
    options = api.DevicePluginOptions(get_preferred_allocation_available=True).SerializeToString()

    def constant(payload: bytes) -> Any:
        async def respond(request: bytes, context: Any) -> bytes:
            del request, context
            return payload

        return grpc.unary_unary_rpc_method_handler(respond)

    async def list_and_watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        del request, context
        yield devices
        await asyncio.Event().wait()

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "v1beta1.DevicePlugin",
                {
                    "GetDevicePluginOptions": constant(options),
                    "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
                    "GetPreferredAllocation": constant(preferred),
                    "Allocate": constant(answer),
                },
            ),
        )
    )
    socket = kubelet.with_name("bare.sock")
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    request = api.RegisterRequest(version="v1beta1", endpoint=socket.name, resource_name=RESOURCE)
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        register = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=api.RegisterRequest.SerializeToString,
            response_deserializer=api.Empty.FromString,
        )
        await register(request)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
