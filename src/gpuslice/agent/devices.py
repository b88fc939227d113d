"""Whole GPUs, MIG devices and replicas of them: the answers to the kubelet's questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuslice.agent.mps_guard import MpsGuard
from gpuslice.agent.node_health import NodeHealth
from gpuslice.config.settings import ContainerSettings, MpsCheck
from gpuslice.inject.mps import LimitKey
from gpuslice.inject.nested import nested
from gpuslice.inject.replicas import mps_pipe, mps_replica
from gpuslice.inject.visible import Host, visible
from gpuslice.kubelet.answer import ContainerAnswer, merged
from gpuslice.kubelet.latest import Latest
from gpuslice.kubelet.service import Refused
from gpuslice.kubelet.wire import HEALTHY, UNHEALTHY, device_list
from gpuslice.mps.control import MpsUnavailable
from gpuslice.slicing.catalogue import DeviceOffer
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.preference import prefer
from gpuslice.slicing.request import Requested, devices_of, mps_limits
from gpuslice.slicing.rules import Policy, SharingStrategy
from gpuslice.slicing.topology import Topology


@dataclass(frozen=True)
class DevicePlan:
    """Everything the answers depend on, so that a reload replaces it as a whole."""

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
    lists: dict[tuple[int, str], bytes] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return self.offer.name

    @property
    def limited(self) -> bool:
        return self.offer.strategy is SharingStrategy.MPS

    def serve(self, health: NodeHealth) -> DeviceResource:
        pipe = mps_pipe(self.name) if self.limited else None
        return DeviceResource(self, MpsGuard(pipe, MpsCheck.REQUIRE), health)

    def encoded(self, position: int, health: str) -> bytes:
        key = position, health
        if key not in self.lists:
            offered = self.offer.devices[position]
            self.lists[key] = device_list(offered.ids(), health, offered.device.numa_node)
        return self.lists[key]


class DeviceResource:
    """A resource such as `nvidia.com/gpu`, `nvidia.com/gpu.shared` or `nvidia.com/mig-1g.5gb`."""

    def __init__(self, plan: DevicePlan, guard: MpsGuard, health: NodeHealth) -> None:
        self._plan = plan
        self._guard = guard
        self._health = health
        self._devices = Latest(self._encode())

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def guard(self) -> MpsGuard:
        return self._guard

    @property
    def devices(self) -> Latest[bytes]:
        return self._devices

    @property
    def checks_before_start(self) -> bool:
        return self._guard.active

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        plan = self._plan
        return prefer(plan.offer, plan.topology, plan.policy, available, must_include, size)

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        try:
            requests = [devices_of(self._plan.offer, ids) for ids in containers]
            return [self._answer(requested) for requested in requests]
        except (GrantRefused, OSError) as refusal:
            raise Refused(f'invalid allocation request for "{self.name}": {refusal}') from refusal

    async def before_start(self, ids: Sequence[str]) -> None:
        del ids  # one daemon serves every GPU of the resource
        try:
            await self._guard.require()
        except MpsUnavailable as error:
            raise Refused(
                f"{self.name}: the container waits, since its limits would not hold: {error}"
            ) from error

    # What changes the offer

    def takes(self, plan: object) -> bool:
        """Whether the kubelet need not hear of the new plan except through the device list."""
        return isinstance(plan, DevicePlan) and plan.limited == self._plan.limited

    def replace_plan(self, plan: object) -> None:
        assert isinstance(plan, DevicePlan)
        self._plan = plan
        self.refresh()

    def refresh(self) -> None:
        """Sends the device list to every open stream, if it changed."""
        self._devices.set(self._encode())

    def healthy_devices(self) -> tuple[int, int]:
        """How many devices are healthy, and how many are not."""
        counts = {HEALTHY: 0, UNHEALTHY: 0}
        for offered in self._plan.offer.devices:
            counts[self._state(offered.device)] += max(1, offered.replicas)
        return counts[HEALTHY], counts[UNHEALTHY]

    def _encode(self) -> bytes:
        return b"".join(
            self._plan.encoded(position, self._state(offered.device))
            for position, offered in enumerate(self._plan.offer.devices)
        )

    def _state(self, device: Device) -> str:
        return UNHEALTHY if self._guard.trouble or not self._health.healthy(device) else HEALTHY

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
