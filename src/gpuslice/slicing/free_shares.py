"""Which free shares of a pool are advertised.

The shares of a container lie on one GPU, but the scheduler sees a single number per node. If that
number were the sum over all GPUs, the scheduler would place pods that no GPU of the node can take:
the kubelet rejects them, and their controller creates new ones at once, without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuslice.slicing.pool import Pool


def shares_in_use(pool: Pool, in_use: Iterable[str]) -> tuple[frozenset[str], ...]:
    """By position in `pool.parts`. Ids that the pool does not have are not counted."""
    owners = pool.owners
    held: list[set[str]] = [set() for _ in pool.parts]
    for device_id in in_use:
        position = owners.get(device_id)
        if position is not None:
            held[position].add(device_id)
    return tuple(map(frozenset, held))


def part_to_advertise(free: Sequence[int], healthy: Sequence[bool]) -> int | None:
    """The position of the part whose free shares are advertised. None: no part is healthy.

    It is the part with the most free shares, so a pod that fits on any GPU of the node never waits
    for another one. `bench/advertising.py` compares this choice with others.
    """
    candidates = [position for position in range(len(free)) if healthy[position]]
    return max(candidates, key=lambda position: free[position], default=None)
