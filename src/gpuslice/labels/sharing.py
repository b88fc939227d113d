"""How a device is shared, in the terms of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.rules import Rules, SharingStrategy

NOT_SHARED = SharingStrategy.NONE.value


@dataclass(frozen=True, slots=True)
class Share:
    # 0: it is not advertised under the name that the labels describe.
    replicas: int
    strategy: str = NOT_SHARED
    # A request for the default name gets a share of the device.
    under_own_name: bool = True

    @property
    def marked(self) -> bool:
        """Whether the product label contains SHARED."""
        return self.replicas > 1 and self.under_own_name


NOT_ADVERTISED = Share(0)


def shares_of(pools: Sequence[Pool], rules: Rules) -> dict[str, Share]:
    """By UUID of the device."""
    renamed = {rule.rename for rule in rules.replicas if rule.rename not in (None, rule.name)}
    return {
        part.device.uuid: _share(pool, part, own=pool.resource not in renamed)
        for pool in pools
        for part in pool.parts
    }


def usual_share(uuids: Iterable[str], shares: Mapping[str, Share]) -> Share:
    """The share of most of the devices; in a tie, that of the first."""
    counts = Counter(shares.get(uuid, NOT_ADVERTISED) for uuid in uuids)
    return counts.most_common(1)[0][0] if counts else NOT_ADVERTISED


def _share(pool: Pool, part: Part, *, own: bool) -> Share:
    if pool.sharing is SharingStrategy.MEMORY:
        return Share(0, pool.sharing.value)
    if not part.is_shared:
        return Share(1)
    return Share(part.count, pool.sharing.value, under_own_name=own)
