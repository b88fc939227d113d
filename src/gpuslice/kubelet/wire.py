"""Between our values and the kubelet's messages. Equal values give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuslice.kubelet.answer import ContainerAnswer
from gpuslice.kubelet.api import deviceplugin_pb2 as api

API_VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


def device_list(ids: Iterable[str], health: str, numa_node: int | None = None) -> bytes:
    """A ListAndWatch message. Concatenated messages are one message with all their devices."""
    nodes = [] if numa_node is None else [api.NUMANode(ID=numa_node)]
    topology = api.TopologyInfo(nodes=nodes) if nodes else None
    devices = [api.Device(ID=device_id, health=health, topology=topology) for device_id in ids]
    return api.ListAndWatchResponse(devices=devices).SerializeToString(deterministic=True)


def allocate_response(answers: Iterable[ContainerAnswer]) -> bytes:
    response = api.AllocateResponse()
    for answer in answers:
        _add(response, answer)
    return response.SerializeToString(deterministic=True)


def _add(response: api.AllocateResponse, answer: ContainerAnswer) -> None:
    """Most answers are variables and nothing else, and a pod waits for them."""
    container = response.container_responses.add(envs=answer.env)
    for mount in answer.mounts:
        container.mounts.add(
            container_path=mount.container_path,
            host_path=mount.host_path,
            read_only=mount.read_only,
        )
    for device in answer.devices:
        container.devices.add(
            container_path=device.container_path,
            host_path=device.host_path,
            permissions=device.permissions,
        )
    if answer.annotations:
        container.annotations.update(answer.annotations)
    for name in answer.cdi_devices:
        container.cdi_devices.add(name=name)
