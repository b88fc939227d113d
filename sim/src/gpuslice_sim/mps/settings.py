"""Defaults of a control daemon, and settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuslice_sim.mps.devices import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.limits import PinnedLimit


# Earlier daemons read a UUID as the number 0 without a limit.
FIRST_BRANCH_WITH_UUID_KEYS = 560


@dataclass(frozen=True)
class Defaults:
    """The settings of the next server. Devices have the names of the commands, oldest first."""

    percentage: float = 100.0
    pinned: tuple[tuple[str, PinnedLimit], ...] = ()
    priority: int = 0
    # In the environment of the daemon. The get commands do not show them.
    inherited: tuple[tuple[str, PinnedLimit], ...] = ()

    def with_pinned(self, device: str, limit: PinnedLimit | None) -> Defaults:
        others = tuple(entry for entry in self.pinned if entry[0] != device)
        return replace(self, pinned=others if limit is None else (*others, (device, limit)))

    def pinned_for(self, device: str) -> PinnedLimit | None:
        return dict(self.pinned).get(device)


@dataclass(frozen=True)
class ServerSettings:
    """The settings of the next client of a server. Memory limits are by UUID of the GPU."""

    percentage: float
    pinned: dict[str, PinnedLimit]

    def with_pinned(self, uuid: str, limit: PinnedLimit | None) -> ServerSettings:
        others = {key: value for key, value in self.pinned.items() if key != uuid}
        return replace(self, pinned=others if limit is None else others | {uuid: limit})


def at_server_start(
    defaults: Defaults, devices: Sequence[Device], *, uuid_keys_apply: bool
) -> ServerSettings:
    """Copies the defaults. The last entry of a device applies; unknown devices are ignored."""
    pinned: dict[str, PinnedLimit] = {}
    for key, limit in (*defaults.inherited, *defaults.pinned):
        if not key.isdigit() and not uuid_keys_apply:
            continue
        device = find(devices, key)
        if device is not None:
            pinned[device.uuid] = limit
    return ServerSettings(defaults.percentage, pinned)
