"""Which devices GetPreferredAllocation prefers.

This is advice in the kubelet's admission path, so it always returns an answer: unknown ids are
ignored, and if too few are free it returns those. Equal requests get equal answers, whatever the
order of the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from gpuslice.slicing.best_fit import best_fit
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.rules import Policy, SharingStrategy
from gpuslice.slicing.topology import Topology
from gpuslice.slicing.topology_search import closest


def prefer(
    pool: Pool,
    topology: Topology,
    policy: Policy,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
) -> list[str]:
    """Memory units by best fit, whole GPUs by topology, replicas and MIG devices by policy."""
    if pool.sharing is SharingStrategy.MEMORY:
        return best_fit(pool, available, must_include, size)
    owners = pool.owners
    held = [i for i in dict.fromkeys(must_include) if i in owners][: max(size, 0)]
    free = {i: owners[i] for i in available if i in owners}
    for device_id in held:
        free.pop(device_id, None)
    wanted = min(max(size, 0) - len(held), len(free))
    if size > 1 and pool.sharing is not SharingStrategy.NONE:
        free = _acceptable(pool, policy, held, free, wanted)
    concerned = {*free.values(), *(owners[i] for i in held)}
    if all(_is_whole_gpu(pool.parts[position]) for position in concerned):
        # A whole GPU has one id, which is its UUID.
        candidates = sorted(free, key=free.__getitem__)
        return held + [candidates[n] for n in closest(topology, held, candidates, wanted)]
    return held + _taken(_cards(pool, held, free), policy, wanted)


def _is_whole_gpu(part: Part) -> bool:
    return not part.is_shared and not part.device.is_mig


def _acceptable(
    pool: Pool,
    policy: Policy,
    held: Sequence[str],
    free: dict[str, int],
    wanted: int,
) -> dict[str, int]:
    """The free ids that Allocate accepts in one request for several.

    Some pools grant shares of one GPU only, some grant one share per container; devices that are
    not shared have no such rule. If no choice is acceptable, all ids are returned, so that Allocate
    refuses the request with a reason.
    """
    if not pool.one_gpu_per_container and not pool.one_share_per_container:
        return free
    cards = [] if pool.one_share_per_container else _cards(pool, held, free)
    fitting = [card for card in cards if card.free >= wanted and card.touched == len(held)]
    if fitting:
        card = min(fitting, key=_RANKS[policy])
        positions = {device.position for device in card.devices}
        return {i: position for i, position in free.items() if position in positions}
    unshared = {i: p for i, p in free.items() if not pool.parts[p].is_shared}
    if len(unshared) < wanted or any(pool.parts[pool.owners[i]].is_shared for i in held):
        return free
    return unshared


@dataclass(slots=True)
class _Device:
    """A device with its free ids, which are sorted when the first one is taken."""

    position: int
    total: int
    ids: list[str] = field(default_factory=list)
    in_order: bool = False
    touched: int = 0

    @property
    def allocated(self) -> int:
        return self.total - len(self.ids)

    def take(self) -> str:
        if not self.in_order:
            # Ids of one device have the same prefix: this sorts them by number, the lowest last.
            self.ids.sort(reverse=True)
            self.ids.sort(key=len, reverse=True)
            self.in_order = True
        self.touched += 1
        return self.ids.pop()


@dataclass(slots=True)
class _Card:
    """A physical GPU with those of its devices that have free ids."""

    position: int
    total: int = 0
    free: int = 0
    touched: int = 0
    devices: list[_Device] = field(default_factory=list)

    @property
    def allocated(self) -> int:
        return self.total - self.free

    def take(self, rank: _Rank) -> str:
        """From the device that the policy ranks first among those with free ids."""
        device = min((device for device in self.devices if device.ids), key=rank)
        self.touched += 1
        self.free -= 1
        return device.take()


_Ranked = tuple[int, int, int]
_Rank = Callable[["_Card | _Device"], _Ranked]

# The lowest rank is taken next. `allocated` includes what this call takes.
_RANKS: dict[Policy, _Rank] = {
    Policy.DISTRIBUTED: lambda one: (one.allocated, one.touched, one.position),
    Policy.PACKED: lambda one: (-one.allocated, -one.touched, one.position),
    Policy.SPREAD: lambda one: (one.touched, one.allocated, one.position),
}


def _cards(pool: Pool, held: Iterable[str], free: dict[str, int]) -> list[_Card]:
    """The GPUs in order of their index. MIG devices count for the GPU that they are a part of."""
    cards: dict[str, _Card] = {}
    devices: list[tuple[_Card, _Device]] = []
    for position, part in enumerate(pool.parts):
        card = cards.setdefault(part.device.gpu, _Card(position))
        device = _Device(position, part.count)
        card.total += part.count
        card.devices.append(device)
        devices.append((card, device))
    for device_id, position in free.items():
        devices[position][1].ids.append(device_id)
    for device_id in held:
        card, device = devices[pool.owners[device_id]]
        card.touched += 1
        device.touched += 1
    for card, device in devices:
        card.free += len(device.ids)
    return [card for card in cards.values() if card.free]


def _taken(cards: list[_Card], policy: Policy, wanted: int) -> list[str]:
    """One id at a time from the GPU that is next by policy."""
    rank = _RANKS[policy]
    queue = [(rank(card), card) for card in cards]
    heapify(queue)
    taken: list[str] = []
    while len(taken) < wanted:
        _, card = queue[0]
        taken.append(card.take(rank))
        if card.free:
            heapreplace(queue, (rank(card), card))
        else:
            heappop(queue)
    return taken
