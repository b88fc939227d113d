"""How devices are shared, for their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.rules import Rules, SharingStrategy

NOT_SHARED = SharingStrategy.NONE.value


@dataclass(frozen=True, slots=True)
class Sharing:
    # 0: it is not advertised under the name that the labels describe.
    replicas: int
    strategy: str = NOT_SHARED
    # A request for the default name gets a share of the device.
    under_own_name: bool = True

    @property
    def marked(self) -> bool:
        """Whether the product label contains SHARED."""
        return self.replicas > 1 and self.under_own_name


NOT_ADVERTISED = Sharing(0)


def sharing_of(pools: Sequence[Pool], rules: Rules) -> dict[str, Sharing]:
    """By UUID of the device."""
    renamed = {name for rule in rules.replicas for name in rule.resources if name != rule.name}
    found: dict[str, Sharing] = {}
    for pool in pools:
        for part in pool.parts:
            one = _sharing(pool, part, own_name=pool.resource not in renamed)
            known = found.get(part.device.uuid, NOT_ADVERTISED)
            # Shares with names: a device has as many as all of them together.
            found[part.device.uuid] = replace(one, replicas=known.replicas + one.replicas)
    return found


def most_common(uuids: Iterable[str], sharing: Mapping[str, Sharing]) -> Sharing:
    """How most of the devices are shared; in a tie, how the first one is."""
    counts = Counter(sharing.get(uuid, NOT_ADVERTISED) for uuid in uuids)
    return counts.most_common(1)[0][0] if counts else NOT_ADVERTISED


def _sharing(pool: Pool, part: Part, *, own_name: bool) -> Sharing:
    if pool.sharing is SharingStrategy.MEMORY:
        return Sharing(0, pool.sharing.value)
    if not part.is_shared:
        return Sharing(1)
    return Sharing(part.count, pool.sharing.value, under_own_name=own_name)
