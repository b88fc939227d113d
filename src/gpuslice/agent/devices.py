"""Whole GPUs, MIG devices and replicas of them: the answers to the kubelet's questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpuslice.agent.nested_files import AllotmentNotKept
from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.resource import Piece, Plan, PlannedResource
from gpuslice.config.settings import ContainerSettings, MpsCheck
from gpuslice.inject.mps import LimitKey
from gpuslice.inject.nested import nested
from gpuslice.inject.replicas import mps_pipe, mps_replica
from gpuslice.inject.visible import Host, can_be_shown, visible
from gpuslice.kubelet.answer import ContainerAnswer, merged
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.slicing.catalogue import DeviceOffer
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.preference import prefer
from gpuslice.slicing.request import Requested, devices_of, mps_limits
from gpuslice.slicing.rules import Policy, SharingStrategy
from gpuslice.slicing.topology import Topology


@dataclass(frozen=True)
class DevicePlan(Plan):
    offer: DeviceOffer
    containers: ContainerSettings
    host: Host
    policy: Policy
    topology: Topology
    limit_key: LimitKey
    # Every device of the node, which nodes of nested clusters get to see.
    everything: tuple[Device, ...] = ()
    # Keeps the list of a nested node's devices in a file and returns the file's path.
    keep_allotment: Callable[[str], str] = field(default=str, compare=False)

    @property
    def name(self) -> str:
        return self.offer.name

    @property
    def limited(self) -> bool:
        return self.offer.strategy is SharingStrategy.MPS

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(
            Piece(
                o.device,
                max(1, o.replicas),
                o.ids,
                o.device.numa_node,
                limited=self.limited and o.replicas > 0,
            )
            for o in self.offer.devices
        )

    @property
    def guarded_by(self) -> tuple[str | None, MpsCheck]:
        return mps_pipe(self.name) if self.limited else None, MpsCheck.REQUIRE

    def usable(self, device: Device) -> bool:
        return can_be_shown(device, self.containers, self.host)

    def limits(self, ids: Sequence[str]) -> bool:
        positions = [self.offer.owners.get(device_id) for device_id in ids]
        return any(position is None or self.pieces[position].limited for position in positions)

    def serve(self, health: NodeHealth) -> DeviceResource:
        return DeviceResource(self, health)


class DeviceResource(PlannedResource[DevicePlan]):
    """A resource such as `nvidia.com/gpu`, `nvidia.com/gpu.shared` or `nvidia.com/mig-1g.5gb`."""

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        plan = self._plan
        return prefer(plan.offer, plan.topology, plan.policy, available, must_include, size)

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        try:
            requests = [devices_of(self._plan.offer, ids) for ids in containers]
            return [self._answer(requested) for requested in requests]
        except (GrantRefused, AllotmentNotKept) as refusal:
            raise Refused(f'invalid allocation request for "{self.name}": {refusal}') from refusal

    def _answer(self, requested: Sequence[Requested]) -> ContainerAnswer:
        plan = self._plan
        devices = [request.device for request in requested]
        if plan.offer.nested:
            shown = nested(
                devices, plan.everything, plan.containers, plan.host, plan.keep_allotment
            )
        else:
            shown = visible(devices, plan.containers, plan.host)
        shares = [self._share(one) for one in requested if plan.limited and one.replicas]
        return merged([shown, *shares])

    def _share(self, request: Requested) -> ContainerAnswer:
        plan = self._plan
        if plan.containers.mps_root is None:
            raise GrantRefused("MPS replicas need mps-root: set it to the host's MPS directory")
        return mps_replica(
            self.name,
            request.device.uuid,
            mps_limits(request),
            plan.containers.mps_root,
            plan.limit_key,
        )
