"""Requests on the socket of a resource that a kubelet does not send in normal operation."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api

from .rig import GPU, Rig

AT_ONCE = 2000
METHODS = ["Allocate", "GetPreferredAllocation", "PreStartContainer"]


def call(socket: Path, method: str, raw: bytes, times: int = 1) -> Counter[tuple[str, str]]:
    """Status and message of this many calls at once."""

    async def main() -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            rpc: Any = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")

            async def once() -> None:
                try:
                    await rpc(raw, timeout=90)
                    found["OK", ""] += 1
                except grpc.aio.AioRpcError as error:
                    found[error.code().name, error.details() or ""] += 1

            await asyncio.gather(*(once() for _ in range(times)))
        return found

    return asyncio.run(main())


def test_thousands_of_requests_at_once_are_all_answered(rig: Rig) -> None:
    with rig.plugin():
        [gpu, *_] = rig.wait_for_resources(GPU)[GPU]
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=[gpu])]
        )
        found = call(plugin_socket(rig), "Allocate", request.SerializeToString(), AT_ONCE)
        assert found == {("OK", ""): AT_ONCE}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ids", [10_000, 1_000_000])
def test_a_request_with_more_devices_than_exist_is_rejected_before_it_costs_memory(
    rig: Rig, method: str, ids: int
) -> None:
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        before = agent.rss_bytes()
        [(status, _)] = call(plugin_socket(rig), method, long_request(method, ids))
        assert status == "RESOURCE_EXHAUSTED"
        assert agent.rss_bytes() - before < 40 << 20
        assert agent.logged(Code.REQUEST_TOO_LONG) == (ids < 100_000)
        assert rig.allocate(GPU, sorted(rig.healthy(GPU))[0])


@pytest.mark.parametrize("method", METHODS)
def test_a_request_that_is_no_message_is_rejected(rig: Rig, method: str) -> None:
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        [(status, _)] = call(plugin_socket(rig), method, b"\xff" * 100)
        assert status == "INVALID_ARGUMENT"
        assert "Traceback" not in agent.output()


def long_request(method: str, count: int) -> bytes:
    ids = [f"GPU-{number:08d}" for number in range(count)]
    match method:
        case "Allocate":
            one = api.ContainerAllocateRequest(devices_ids=ids)
            return api.AllocateRequest(container_requests=[one]).SerializeToString()
        case "GetPreferredAllocation":
            container = api.ContainerPreferredAllocationRequest(available_deviceIDs=ids)
            request = api.PreferredAllocationRequest(container_requests=[container])
            return request.SerializeToString()
        case _:
            return api.PreStartContainerRequest(devices_ids=ids).SerializeToString()


def plugin_socket(rig: Rig) -> Path:
    return rig.kubelet.directory / "nvidia-gpu.sock"
