"""Which memory units GetPreferredAllocation prefers: all of one GPU, the one they fit best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest

from gpuslice.slicing.pool import Pool


def best_fit(
    pool: Pool, available: Sequence[str], must_include: Sequence[str], size: int
) -> list[str]:
    """The GPU with the fewest free units that still holds the request.

    This is advice in the kubelet's admission path, so it always returns an answer: unknown ids are
    ignored, and where no GPU fits it fills the emptiest ones, so that Allocate refuses the request
    with a reason that the user can read.
    """
    owners = pool.owners
    size = max(size, 0)
    chosen = [device_id for device_id in must_include if device_id in owners][:size]
    # One lookup per id: with small units there are tens of thousands of them.
    positions = [*map(owners.get, available)]
    free = Counter(positions)
    for position in _in_order_of_preference(pool, free, chosen, size):
        if len(chosen) == size:
            break
        taken = set(chosen)
        units = [
            device_id
            for device_id, owner in zip(available, positions, strict=True)
            if owner == position and device_id not in taken
        ]
        chosen += nsmallest(size - len(chosen), units, key=_by_unit)
    return chosen


def _in_order_of_preference(
    pool: Pool, free: Counter[int | None], chosen: list[str], size: int
) -> list[int]:
    """GPUs that the container is on already, then those that fit (fullest first), then the rest."""
    held = {pool.owners[device_id] for device_id in chosen}

    def rank(position: int) -> tuple[bool, bool, int, int]:
        units = free[position]
        fits = units >= size
        return (position not in held, not fits, units if fits else -units, position)

    return sorted((p for p in range(len(pool.parts)) if free[p]), key=rank)


def _by_unit(device_id: str) -> tuple[int, str]:
    """Orders ids of one GPU by unit number: they have the same prefix."""
    return len(device_id), device_id
