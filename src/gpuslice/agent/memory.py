"""GPU memory as a countable resource: the answers to the kubelet's questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.resource import Piece, Plan, PlannedResource
from gpuslice.config.settings import ContainerSettings, MemorySettings, MpsCheck
from gpuslice.inject.gpushare import gpushare_variables
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.inject.visible import Host, can_be_shown, visible
from gpuslice.kubelet.answer import ContainerAnswer, merged
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.slicing.choice import choose_units
from gpuslice.slicing.device import Device, whole
from gpuslice.slicing.errors import GrantRefused, NothingToOffer
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.limits import can_limit, limits_of
from gpuslice.slicing.offer import Offer, cut


@dataclass(frozen=True)
class MemoryPlan(Plan):
    settings: MemorySettings
    containers: ContainerSettings
    host: Host
    offer: Offer
    limit_key: LimitKey
    # GPUs that MPS cannot hold to a share: what cannot be limited is not offered.
    unlimitable: tuple[Gpu, ...] = ()

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

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        limited = self.settings.mps_pipe is not None
        return tuple(Piece(whole(s.gpu), s.units, s.ids, limited=limited) for s in self.offer.gpus)

    @property
    def guarded_by(self) -> tuple[str | None, MpsCheck]:
        return self.settings.mps_pipe, self.settings.mps_check

    def usable(self, device: Device) -> bool:
        return can_be_shown(device, self.containers, self.host)

    def limits(self, ids: Sequence[str]) -> bool:
        del ids
        return self.settings.mps_pipe is not None

    def serve(self, health: NodeHealth) -> MemorySlices:
        return MemorySlices(self, health)


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


class MemorySlices(PlannedResource[MemoryPlan]):
    """The resource `aliyun.com/gpu-mem` (or as it is named in the settings)."""

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        return choose_units(self._plan.offer, available, must_include, size)

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        try:
            grants = [grant(self._plan.offer, ids) for ids in containers]
            pod_units = sum(slice_.units for slice_ in grants)
            return [self._answer(slice_, pod_units) for slice_ in grants]
        except GrantRefused as refusal:
            raise Refused(f"{self.name}: {refusal}") from refusal

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
