"""Defaults of a control daemon and the settings of one server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuslice_sim.mps.devices import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.limits import PinnedLimit


@dataclass(frozen=True)
class Defaults:
    """What the next server starts with. Devices are kept as they were named, oldest first."""

    percentage: float = 100.0
    pinned: tuple[tuple[str, PinnedLimit], ...] = ()
    priority: int = 0

    def with_pinned(self, device: str, limit: PinnedLimit) -> Defaults:
        others = tuple(entry for entry in self.pinned if entry[0] != device)
        return replace(self, pinned=(*others, (device, limit)))

    def pinned_for(self, device: str) -> PinnedLimit | None:
        return dict(self.pinned).get(device)


@dataclass(frozen=True)
class ServerSettings:
    """What a server gives its next client; memory limits by GPU UUID."""

    percentage: float
    pinned: dict[str, PinnedLimit]

    def with_pinned(self, uuid: str, limit: PinnedLimit) -> ServerSettings:
        return replace(self, pinned={**self.pinned, uuid: limit})


def at_server_start(
    defaults: Defaults, devices: Sequence[Device], *, uuid_keys_apply: bool
) -> ServerSettings:
    """Copies the defaults: the last entry of a device wins, unknown devices are ignored."""
    pinned: dict[str, PinnedLimit] = {}
    for key, limit in defaults.pinned:
        if not key.isdigit() and not uuid_keys_apply:
            continue
        device = find(devices, key)
        if device is not None:
            pinned[device.uuid] = limit
    return ServerSettings(defaults.percentage, pinned)
