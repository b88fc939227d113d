"""GPUs -> devices: what a node offers when memory is cut into units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gpuslice.slicing.errors import TooManyDevices
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.ids import IdStyle, unit_ids
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES, numbered_bytes
from gpuslice.slicing.units import MemoryUnit


@dataclass(frozen=True)
class SlicedGpu:
    gpu: Gpu
    units: int
    style: IdStyle

    def ids(self) -> Iterator[str]:
        return unit_ids(self.gpu, self.units, self.style)


@dataclass(frozen=True)
class Offer:
    """All units of all GPUs, in GPU order."""

    unit: MemoryUnit
    gpus: tuple[SlicedGpu, ...]

    @property
    def units(self) -> int:
        return sum(sliced.units for sliced in self.gpus)

    @cached_property
    def owners(self) -> dict[str, int]:
        """Device id -> position in `gpus` of the GPU it is a unit of."""
        return {
            device_id: position
            for position, sliced in enumerate(self.gpus)
            for device_id in sliced.ids()
        }


def cut(gpus: Iterable[Gpu], unit: MemoryUnit, *, reserve_mib: int = 0) -> Offer:
    """Cuts every GPU by its own size. A GPU smaller than one unit contributes none."""
    counted = [
        (gpu, unit.units_in(gpu.memory_mib - reserve_mib))
        for gpu in sorted(gpus, key=lambda gpu: gpu.minor)
    ]
    for style in IdStyle:
        offer = Offer(unit, tuple(SlicedGpu(gpu, units, style) for gpu, units in counted if units))
        if message_bytes(offer) <= MESSAGE_LIMIT_BYTES:
            return offer
    raise TooManyDevices(
        f"memory unit {unit} cuts this node into {offer.units} devices: their list takes "
        f"{message_bytes(offer)} bytes and the kubelet accepts {MESSAGE_LIMIT_BYTES}. "
        f"Use a larger unit, for example {_unit_that_fits(counted, unit, reserve_mib)}"
    )


def message_bytes(offer: Offer) -> int:
    """The size of the device list on the wire at its worst, when all devices are unhealthy."""
    return sum(_list_bytes(sliced) for sliced in offer.gpus)


def _list_bytes(sliced: SlicedGpu) -> int:
    return numbered_bytes(len(next(sliced.ids())) - 1, sliced.units)


def _unit_that_fits(
    counted: list[tuple[Gpu, int]], unit: MemoryUnit, reserve_mib: int
) -> MemoryUnit:
    """The first doubling of the unit that fits."""
    candidate = unit
    while True:
        candidate = MemoryUnit(candidate.mib * 2)
        offer = Offer(
            candidate,
            tuple(
                SlicedGpu(gpu, units, IdStyle.SHORT)
                for gpu, _ in counted
                if (units := candidate.units_in(gpu.memory_mib - reserve_mib))
            ),
        )
        if message_bytes(offer) <= MESSAGE_LIMIT_BYTES:
            return candidate
