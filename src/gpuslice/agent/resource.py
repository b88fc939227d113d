"""What all resources of the agent have in common: a plan, health, and a guard over their limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gpuslice.agent.mps_guard import MpsGuard
from gpuslice.agent.node_health import NodeHealth
from gpuslice.config.settings import MpsCheck
from gpuslice.kubelet.answer import ContainerAnswer
from gpuslice.kubelet.latest import Latest
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.kubelet.wire import HEALTHY, UNHEALTHY, device_list
from gpuslice.mps.control import MpsUnavailable
from gpuslice.slicing.device import Device


@dataclass(frozen=True, slots=True)
class Piece:
    """The ids under which one device is offered, which are healthy or not together."""

    device: Device
    count: int
    ids: Callable[[], Iterable[str]]
    numa_node: int | None = None
    # Whether its containers are held to a share, which nobody does while MPS is down.
    limited: bool = False


@dataclass(frozen=True)
class Plan(ABC):
    """Everything the answers depend on, so that a reload replaces it as a whole."""

    _lists: dict[tuple[int, str], bytes] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def pieces(self) -> Sequence[Piece]: ...

    @property
    @abstractmethod
    def guarded_by(self) -> tuple[str | None, MpsCheck]:
        """The pipe directory of the MPS daemon that holds the limits, and how it is checked."""

    @abstractmethod
    def limits(self, ids: Sequence[str]) -> bool:
        """Whether a container with these is held to a share; of unknown ones, it is."""

    @abstractmethod
    def usable(self, device: Device) -> bool:
        """Whether a container can be given it now."""

    @abstractmethod
    def serve(self, health: NodeHealth) -> PlannedResource[Any]: ...

    def encoded(self, position: int, health: str) -> bytes:
        """One piece's part of the device list; kept, as health changes device by device."""
        key = position, health
        if key not in self._lists:
            piece = self.pieces[position]
            self._lists[key] = device_list(piece.ids(), health, piece.numa_node)
        return self._lists[key]


P = TypeVar("P", bound=Plan)


class PlannedResource(ABC, Generic[P]):
    """Implements `kubelet.service.Resource` but for the two questions that differ."""

    def __init__(self, plan: P, health: NodeHealth) -> None:
        self._plan = plan
        self._health = health
        self._guard = MpsGuard(*plan.guarded_by)
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

    @abstractmethod
    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]: ...

    @abstractmethod
    def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]: ...

    async def before_start(self, ids: Sequence[str]) -> None:
        if not self._plan.limits(ids):
            return
        try:
            await self._guard.require()
        except MpsUnavailable as error:
            # The kubelet should not send more containers here.
            self.refresh()
            raise Refused(
                f"{self.name}: the container waits, since its limits would not hold: {error}"
            ) from error

    # What changes the offer

    def takes(self, plan: Plan) -> bool:
        """Whether the kubelet need not hear of the new plan except through the device list."""
        return type(plan) is type(self._plan) and plan.guarded_by == self._plan.guarded_by

    def replace_plan(self, plan: P) -> None:
        self._plan = plan
        self.refresh()

    def refresh(self) -> None:
        """Sends the device list to every open stream, if it changed."""
        self._devices.set(self._encode())

    def healthy_devices(self) -> tuple[int, int]:
        """How many devices are healthy, and how many are not."""
        counts = {HEALTHY: 0, UNHEALTHY: 0}
        for piece in self._plan.pieces:
            counts[self._state(piece)] += piece.count
        return counts[HEALTHY], counts[UNHEALTHY]

    def _encode(self) -> bytes:
        return b"".join(
            self._plan.encoded(position, self._state(piece))
            for position, piece in enumerate(self._plan.pieces)
        )

    def _state(self, piece: Piece) -> str:
        good = self._plan.usable(piece.device) and self._health.healthy(piece.device)
        held = not piece.limited or self._guard.trouble is None
        return HEALTHY if good and held else UNHEALTHY
