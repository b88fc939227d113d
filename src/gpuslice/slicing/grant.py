"""Device ids -> the slice they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.ids import printable, split_unit_id
from gpuslice.slicing.offer import Offer
from gpuslice.slicing.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class Grant:
    """One container's slice: `units` of the `gpu_units` that the GPU is cut into."""

    gpu: Gpu
    units: int
    gpu_units: int
    unit: MemoryUnit

    @property
    def memory_mib(self) -> int:
        return self.units * self.unit.mib


def grant(offer: Offer, ids: Sequence[str]) -> Grant:
    """A pure function of the ids: right after any restart, and with nobody else to ask."""
    if not ids:
        raise GrantRefused("the request names no device ids")
    if len(set(ids)) != len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise GrantRefused(f"device id {_shown(twice)} is named more than once")
    owners = Counter(_owner(offer, device_id) for device_id in ids)
    if len(owners) > 1:
        raise GrantRefused(_spans(offer, owners))
    sliced = offer.gpus[next(iter(owners))]
    return Grant(sliced.gpu, len(ids), sliced.units, offer.unit)


def _owner(offer: Offer, device_id: str) -> int:
    known = offer.owners.get(device_id)
    if known is not None:
        return known
    named = split_unit_id(device_id)
    if named is None:
        raise GrantRefused(
            f"device id {_shown(device_id)} is not a memory unit of this node "
            "(expected <GPU UUID>-_-<unit> or <minor number>-<unit>)"
        )
    raise GrantRefused(
        f"device id {_shown(device_id)} is unknown: GPU {_shown(named[0])} is gone or was cut "
        f"differently (this node now offers {offer.units} units of {offer.unit} on "
        f"{len(offer.gpus)} GPUs). "
        "Delete the pod so that it is placed anew"
    )


def _shown(text: str) -> str:
    return f"'{printable(text)}'"


def _spans(offer: Offer, owners: Counter[int]) -> str:
    parts = ", ".join(
        f"{offer.unit.describe(count)} on GPU {offer.gpus[position].gpu.minor}"
        for position, count in sorted(owners.items())
    )
    total = offer.unit.describe(owners.total())
    return (
        f"no single GPU of this node has {total} free for this pod: it would be spread ({parts}) "
        "and a slice must lie on one GPU. Ask for less, or wait until memory is freed"
    )
