"""Which devices the kubelet should take.

This is advice in the kubelet's admission path, so it always answers: ids it does not know are
left out, and where too few are free it names those. Equal questions get equal answers, in
whatever order the ids come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from gpuslice.slicing.catalogue import DeviceOffer, Offered
from gpuslice.slicing.rules import Policy, SharingStrategy
from gpuslice.slicing.topology import Topology
from gpuslice.slicing.topology_search import closest


def prefer(
    offer: DeviceOffer,
    topology: Topology,
    policy: Policy,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
) -> list[str]:
    """Whole GPUs by how closely they are joined, replicas and MIG devices by policy."""
    owners = offer.owners
    held = [i for i in dict.fromkeys(must_include) if i in owners][: max(size, 0)]
    free = {i: owners[i] for i in available if i in owners}
    for device_id in held:
        free.pop(device_id, None)
    wanted = min(max(size, 0) - len(held), len(free))
    if size > 1 and offer.strategy is not SharingStrategy.NONE:
        free = _acceptable(offer, policy, held, free, wanted)
    concerned = {*free.values(), *(owners[i] for i in held)}
    if all(_is_whole_gpu(offer.devices[position]) for position in concerned):
        # A whole GPU has one id, which is its UUID.
        candidates = sorted(free, key=free.__getitem__)
        return held + [candidates[n] for n in closest(topology, held, candidates, wanted)]
    return held + _taken(_cards(offer, held, free), policy, wanted)


def _is_whole_gpu(offered: Offered) -> bool:
    return not offered.replicas and not offered.device.is_mig


def _acceptable(
    offer: DeviceOffer,
    policy: Policy,
    held: Sequence[str],
    free: dict[str, int],
    wanted: int,
) -> dict[str, int]:
    """Those of the free ids that Allocate accepts in one request for several.

    MPS limits hold on one GPU, and some resources give one replica at a time. Devices that are
    not shared know no such rule. Where no choice is right, all are left in, for Allocate to
    refuse with a reason.
    """
    limited, single = offer.strategy is SharingStrategy.MPS, offer.fail_requests_greater_than_one
    if not limited and not single:
        return free
    cards = [] if single else _cards(offer, held, free)
    fitting = [card for card in cards if card.free >= wanted and card.touched == len(held)]
    if fitting:
        card = min(fitting, key=_RANKS[policy])
        positions = {part.position for part in card.parts}
        return {i: position for i, position in free.items() if position in positions}
    unshared = {i: p for i, p in free.items() if not offer.devices[p].replicas}
    if len(unshared) < wanted or any(offer.devices[offer.owners[i]].replicas for i in held):
        return free
    return unshared


@dataclass(slots=True)
class _Part:
    """A device with its free ids, which are put in order when the first one is taken."""

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
            # Ids of one device share their prefix: this orders them by number, the lowest last.
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
    parts: list[_Part] = field(default_factory=list)

    @property
    def allocated(self) -> int:
        return self.total - self.free

    def take(self, rank: _Rank) -> str:
        """From the device that the policy ranks first among those that are left."""
        part = min((part for part in self.parts if part.ids), key=rank)
        self.touched += 1
        self.free -= 1
        return part.take()


_Ranked = tuple[int, int, int]
_Rank = Callable[["_Card | _Part"], _Ranked]

# What is least is taken next. `allocated` counts what this call takes, too.
_RANKS: dict[Policy, _Rank] = {
    Policy.DISTRIBUTED: lambda one: (one.allocated, one.touched, one.position),
    Policy.PACKED: lambda one: (-one.allocated, -one.touched, one.position),
    Policy.SPREAD: lambda one: (one.touched, one.allocated, one.position),
}


def _cards(offer: DeviceOffer, held: Iterable[str], free: dict[str, int]) -> list[_Card]:
    """The GPUs in order of their index. MIG devices count for the GPU that they are a part of."""
    cards: dict[str, _Card] = {}
    parts: list[tuple[_Card, _Part]] = []
    for position, offered in enumerate(offer.devices):
        total = max(1, offered.replicas)
        card = cards.setdefault(offered.device.gpu, _Card(position))
        part = _Part(position, total)
        card.total += total
        card.parts.append(part)
        parts.append((card, part))
    for device_id, position in free.items():
        parts[position][1].ids.append(device_id)
    for device_id in held:
        card, part = parts[offer.owners[device_id]]
        card.touched += 1
        part.touched += 1
    for card, part in parts:
        card.free += len(part.ids)
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
