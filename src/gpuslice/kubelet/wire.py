"""Our values <-> the kubelet's messages. Equal values give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuslice.inject.edits import ContainerEdits
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.slicing.device_ids import DeviceIds

API_VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of one GPU in a list."""

    ids: DeviceIds
    healthy: bool
    numa_node: int | None = None
    # If set, only these are healthy.
    only: frozenset[str] | None = None

    @property
    def healthy_count(self) -> int:
        if not self.healthy:
            return 0
        return len(self.ids) if self.only is None else len(self.only)


class DeviceListEncoder:
    """Encodes device lists group by group, because health changes group by group.

    With small memory units a group has tens of thousands of devices.
    """

    def __init__(self) -> None:
        self._encoded: dict[DeviceGroup, bytes] = {}
        self._previous: dict[DeviceGroup, bytes] = {}

    def encode(self, groups: Iterable[DeviceGroup]) -> bytes:
        """A ListAndWatch message. Concatenated messages are one message with all their devices."""
        encoded: dict[DeviceGroup, bytes] = {}
        for group in groups:
            known = self._encoded.get(group) or self._previous.get(group)
            encoded[group] = device_list(group) if known is None else known
        if encoded != self._encoded:
            # One list back, for a GPU or a daemon that comes and goes.
            self._previous, self._encoded = self._encoded, encoded
        return b"".join(encoded.values())


def device_list(group: DeviceGroup) -> bytes:
    healthy, only = group.healthy, group.only
    nodes = [] if group.numa_node is None else [api.NUMANode(ID=group.numa_node)]
    topology = api.TopologyInfo(nodes=nodes) if nodes else None
    devices = [
        api.Device(
            ID=one,
            health=HEALTHY if healthy and (only is None or one in only) else UNHEALTHY,
            topology=topology,
        )
        for one in group.ids
    ]
    return api.ListAndWatchResponse(devices=devices).SerializeToString(deterministic=True)


def allocate_response(containers: Iterable[ContainerEdits]) -> bytes:
    response = api.AllocateResponse()
    for edits in containers:
        _add(response, edits)
    return response.SerializeToString(deterministic=True)


def _add(response: api.AllocateResponse, edits: ContainerEdits) -> None:
    """Most answers consist of variables only, and a pod waits for them."""
    if edits.hooks:
        raise ValueError("the kubelet's API has no hooks")
    container = response.container_responses.add(envs=edits.env)
    for mount in edits.mounts:
        container.mounts.add(
            container_path=mount.container_path,
            host_path=mount.host_path,
            read_only=mount.read_only,
        )
    for device in edits.devices:
        container.devices.add(
            container_path=device.container_path, host_path=device.host_path, permissions="rw"
        )
    if edits.annotations:
        container.annotations.update(edits.annotations)
    for name in edits.cdi_devices:
        container.cdi_devices.add(name=name)
