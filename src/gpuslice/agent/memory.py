"""GPU memory as a countable resource: the answers to the kubelet's questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuslice.agent.mps_guard import MpsGuard
from gpuslice.agent.node_health import NodeHealth
from gpuslice.config.settings import ContainerSettings, MemorySettings
from gpuslice.inject.gpushare import gpushare_variables
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.inject.visible import Host, visible
from gpuslice.kubelet.answer import ContainerAnswer, merged
from gpuslice.kubelet.latest import Latest
from gpuslice.kubelet.service import Refused
from gpuslice.kubelet.wire import HEALTHY, UNHEALTHY, device_list
from gpuslice.mps.capability import can_limit
from gpuslice.mps.control import MpsUnavailable
from gpuslice.slicing.choice import choose_units
from gpuslice.slicing.device import whole
from gpuslice.slicing.errors import GrantRefused, NothingToOffer
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.limits import limits_of
from gpuslice.slicing.offer import Offer, cut


@dataclass(frozen=True)
class MemoryPlan:
    """Everything the answers depend on, so that a reload replaces it as a whole."""

    settings: MemorySettings
    containers: ContainerSettings
    host: Host
    offer: Offer
    limit_key: LimitKey
    # GPUs that MPS cannot hold to a share: what cannot be limited is not offered.
    unlimitable: tuple[Gpu, ...] = ()
    lists: dict[tuple[int, str], bytes] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        settings: MemorySettings,
        containers: ContainerSettings,
        host: Host,
        gpus: Sequence[Gpu],
        driver_version: str,
    ) -> MemoryPlan:
        unlimitable = tuple(g for g in gpus if settings.mps_pipe and not can_limit(g))
        usable = [gpu for gpu in gpus if gpu not in unlimitable]
        offer = cut(usable, settings.unit, reserve_mib=settings.reserve_mib)
        if not offer.gpus:
            raise NothingToOffer(_why_nothing(settings, usable, unlimitable))
        key = LimitKey.for_driver(driver_version)
        return cls(settings, containers, host, offer, key, unlimitable)

    @property
    def name(self) -> str:
        return self.settings.resource

    @property
    def checks(self) -> tuple[object, ...]:
        return self.settings.mps_pipe, self.settings.mps_check

    def serve(self, health: NodeHealth) -> MemorySlices:
        return MemorySlices(self, MpsGuard(self.settings.mps_pipe, self.settings.mps_check), health)

    def encoded(self, position: int, health: str) -> bytes:
        """One GPU's part of the device list; kept, as health changes GPU by GPU."""
        key = position, health
        if key not in self.lists:
            sliced = self.offer.gpus[position]
            self.lists[key] = device_list(sliced.ids(), health)
        return self.lists[key]


def _why_nothing(settings: MemorySettings, gpus: Sequence[Gpu], unlimitable: Sequence[Gpu]) -> str:
    if not gpus:
        return (
            f"MPS can limit none of the {len(unlimitable)} GPUs, as they are older than Volta: "
            "run without mps-pipe to offer memory that is counted but not limited"
        )
    largest = max(gpu.memory_mib for gpu in gpus)
    return (
        f"no GPU holds one unit of {settings.unit}: the largest has {largest} MiB, of which "
        f"{settings.reserve_mib} MiB are reserved. Use a smaller unit or reserve"
    )


class MemorySlices:
    """The resource `aliyun.com/gpu-mem` (or as it is named in the settings)."""

    def __init__(self, plan: MemoryPlan, guard: MpsGuard, health: NodeHealth) -> None:
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
        return choose_units(self._plan.offer, available, must_include, size)

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        try:
            grants = [grant(self._plan.offer, ids) for ids in containers]
        except GrantRefused as refusal:
            raise Refused(f"{self.name}: {refusal}") from refusal
        pod_units = sum(slice_.units for slice_ in grants)
        return [self._answer(slice_, pod_units) for slice_ in grants]

    async def before_start(self, ids: Sequence[str]) -> None:
        del ids  # the daemon serves every GPU of the node
        try:
            await self._guard.require()
        except MpsUnavailable as error:
            raise Refused(
                f"{self.name}: the container waits, since its limits would not hold: {error}"
            ) from error

    # What changes the offer

    def takes(self, plan: object) -> bool:
        """Whether the kubelet need not hear of the new plan except through the device list."""
        return isinstance(plan, MemoryPlan) and plan.checks == self._plan.checks

    def replace_plan(self, plan: object) -> None:
        assert isinstance(plan, MemoryPlan)
        self._plan = plan
        self.refresh()

    def refresh(self) -> None:
        """Sends the device list to every open stream, if it changed."""
        self._devices.set(self._encode())

    def healthy_devices(self) -> tuple[int, int]:
        """How many units are healthy, and how many are not."""
        healthy = sum(s.units for s in self._plan.offer.gpus if self._state(s.gpu) == HEALTHY)
        return healthy, self._plan.offer.units - healthy

    def _encode(self) -> bytes:
        return b"".join(
            self._plan.encoded(position, self._state(sliced.gpu))
            for position, sliced in enumerate(self._plan.offer.gpus)
        )

    def _state(self, gpu: Gpu) -> str:
        if self._guard.trouble or not self._health.healthy_gpu(gpu.uuid):
            return UNHEALTHY
        return HEALTHY

    def _answer(self, slice_: Grant, pod_units: int) -> ContainerAnswer:
        plan = self._plan
        parts = [
            visible([whole(slice_.gpu)], plan.containers, plan.host),
            gpushare_variables(slice_, pod_units=pod_units),
        ]
        if plan.settings.mps_pipe is not None:
            limits = limits_of(slice_, plan.settings.threads)
            parts.append(mps_client(slice_.gpu, limits, plan.settings.mps_pipe, plan.limit_key))
        return merged(parts)
