"""How often a device can be had, and by which way of sharing, as labels tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuslice.slicing.catalogue import Catalogue, DeviceOffer, Offered
from gpuslice.slicing.rules import Rules, SharingStrategy

NOT_SHARED = SharingStrategy.NONE.value
BY_MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Share:
    # 0: it is not to be had under the name that the labels are about.
    replicas: int
    strategy: str = NOT_SHARED
    # Whoever asks for the ordinary name gets a part of the device.
    under_own_name: bool = True

    @property
    def marked(self) -> bool:
        """Whether the product says SHARED."""
        return self.replicas > 1 and self.under_own_name


NOT_OFFERED = Share(0)


def shares_of(catalogue: Catalogue | None, rules: Rules) -> dict[str, Share]:
    """By UUID of the device. Without a catalogue nothing is offered."""
    if catalogue is None:
        return {}
    renamed = {rule.rename for rule in rules.replicas if rule.rename not in (None, rule.name)}
    shares = {gpu.uuid: Share(0, BY_MEMORY) for gpu in catalogue.memory}
    for offer in catalogue.resources:
        for offered in offer.devices:
            shares[offered.device.uuid] = _share(offer, offered, own=offer.name not in renamed)
    return shares


def usual_share(uuids: Iterable[str], shares: Mapping[str, Share]) -> Share:
    """What holds for most of the devices, and among equals for the first."""
    counts = Counter(shares.get(uuid, NOT_OFFERED) for uuid in uuids)
    return counts.most_common(1)[0][0] if counts else NOT_OFFERED


def _share(offer: DeviceOffer, offered: Offered, *, own: bool) -> Share:
    if not offered.replicas:
        return Share(1)
    return Share(offered.replicas, offer.strategy.value, under_own_name=own)
