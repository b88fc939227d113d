"""GPU memory as a countable resource: the answers to the kubelet's questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuslice.agent.mps_guard import MpsGuard
from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.inject.gpushare import gpushare_variables
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.kubelet.answer import ContainerAnswer, merged
from gpuslice.kubelet.latest import Latest
from gpuslice.kubelet.service import Refused
from gpuslice.kubelet.wire import HEALTHY, UNHEALTHY, device_list
from gpuslice.mps.capability import can_limit
from gpuslice.mps.control import MpsUnavailable
from gpuslice.slicing.choice import choose_units
from gpuslice.slicing.errors import GrantRefused, NothingToOffer
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.limits import limits_of
from gpuslice.slicing.offer import Offer, cut


@dataclass(frozen=True)
class Plan:
    """Everything the answers depend on, so that a reload replaces it as a whole."""

    settings: Settings
    offer: Offer
    limit_key: LimitKey
    # GPUs that MPS cannot hold to a share: what cannot be limited is not offered.
    unlimitable: tuple[Gpu, ...] = ()
    lists: dict[tuple[int, str], bytes] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, settings: Settings, inventory: Inventory) -> Plan:
        unlimitable = [g for g in inventory.gpus if settings.mps_pipe and not can_limit(g)]
        gpus = [gpu for gpu in inventory.gpus if gpu not in unlimitable]
        offer = cut(gpus, settings.memory_unit, reserve_mib=settings.memory_reserve_mib)
        if not offer.gpus:
            raise NothingToOffer(_why_nothing(settings, gpus, unlimitable))
        key = LimitKey.for_driver(inventory.driver_version)
        return cls(settings, offer, key, tuple(unlimitable))

    def encoded(self, position: int, health: str) -> bytes:
        """One GPU's part of the device list; kept, as health changes GPU by GPU."""
        key = position, health
        if key not in self.lists:
            self.lists[key] = device_list(self.offer.gpus[position].ids(), health)
        return self.lists[key]


def _why_nothing(settings: Settings, gpus: Sequence[Gpu], unlimitable: Sequence[Gpu]) -> str:
    if not gpus:
        return (
            f"MPS can limit none of the {len(unlimitable)} GPUs, as they are older than Volta: "
            "run without mps-pipe to offer memory that is counted but not limited"
        )
    largest = max(gpu.memory_mib for gpu in gpus)
    return (
        f"no GPU holds one unit of {settings.memory_unit}: the largest has {largest} MiB, of which "
        f"{settings.memory_reserve_mib} MiB are reserved. Use a smaller unit or reserve"
    )


class MemorySlices:
    """The resource `aliyun.com/gpu-mem` (or as it is named in the settings)."""

    def __init__(self, plan: Plan, mps: MpsGuard) -> None:
        self._plan = plan
        self._mps = mps
        self._troubled: set[str] = set()
        self._devices = Latest(self._encode())

    @property
    def name(self) -> str:
        return self._plan.settings.resource

    @property
    def devices(self) -> Latest[bytes]:
        return self._devices

    @property
    def checks_before_start(self) -> bool:
        return self._mps.active

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        return choose_units(self._plan.offer, available, must_include, size)

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        try:
            grants = [grant(self._plan.offer, ids) for ids in containers]
        except GrantRefused as refusal:
            raise Refused(str(refusal)) from refusal
        pod_units = sum(slice_.units for slice_ in grants)
        return [self._answer(slice_, pod_units) for slice_ in grants]

    async def before_start(self, ids: Sequence[str]) -> None:
        del ids  # the daemon serves every GPU of the node
        try:
            await self._mps.require()
        except MpsUnavailable as error:
            raise Refused(
                f"the container waits, since its limits would not hold: {error}"
            ) from error

    # What changes the offer

    def replace_plan(self, plan: Plan) -> None:
        """After a reload. GPUs were enumerated anew, so their past troubles are over."""
        self._plan = plan
        self._troubled.clear()
        self.refresh()

    def mark_unhealthy(self, uuid: str | None) -> list[str]:
        """Marks every unit of the GPU (of all GPUs if None) at once; returns the GPUs concerned."""
        uuids = [s.gpu.uuid for s in self._plan.offer.gpus if uuid in (None, s.gpu.uuid)]
        self._troubled.update(uuids)
        self.refresh()
        return uuids

    def refresh(self) -> None:
        """Sends the device list to every open stream, if it changed."""
        self._devices.set(self._encode())

    def _encode(self) -> bytes:
        return b"".join(
            self._plan.encoded(position, self._health(sliced.gpu.uuid))
            for position, sliced in enumerate(self._plan.offer.gpus)
        )

    def _health(self, uuid: str) -> str:
        return UNHEALTHY if uuid in self._troubled or self._mps.trouble else HEALTHY

    def _answer(self, slice_: Grant, pod_units: int) -> ContainerAnswer:
        settings = self._plan.settings
        parts = [gpushare_variables(slice_, pod_units=pod_units)]
        if settings.mps_pipe is not None:
            limits = limits_of(slice_, settings.threads)
            parts.append(mps_client(slice_.gpu, limits, settings.mps_pipe, self._plan.limit_key))
        return merged(parts)
