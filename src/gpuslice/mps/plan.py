"""Settings and hardware -> the MPS daemons of a node; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.rules import SharingStrategy


@dataclass(frozen=True, slots=True)
class Wanted:
    """The daemon of one resource, and the UUIDs of the GPUs that it serves, in their order."""

    resource: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MpsPlan:
    daemons: tuple[Wanted, ...] = ()
    # UUIDs of all GPUs that are there, shared by MPS or not.
    present: frozenset[str] = frozenset()
    # What an operator should know of GPUs that are not shared as the settings say.
    notes: tuple[str, ...] = ()


def shares_by_mps(settings: Settings) -> bool:
    """Whether the settings speak of MPS at all; what they make of the GPUs is the plan's."""
    return any(rule.strategy is SharingStrategy.MPS for rule in settings.rules.replicas)


def plan_daemons(settings: Settings, inventory: Inventory) -> MpsPlan:
    """Raises SlicingError as the agent does: what it cannot offer needs no daemon."""
    found = catalogue(inventory.gpus, settings.rules, inventory.stand_ins)
    daemons = []
    for offer in found.resources:
        if offer.strategy is not SharingStrategy.MPS:
            continue
        # Devices without replicas are whole GPUs of the same name, which MPS leaves alone.
        gpus = tuple(offered.device.uuid for offered in offer.devices if offered.replicas)
        daemons.append(Wanted(offer.name, gpus))
    present = frozenset(gpu.uuid for gpu in inventory.gpus)
    left_out = (
        f"GPU {gpu.index} is left out: {gpu.reason}"
        for gpu in inventory.left_out
        if gpu.mig_index is None
    )
    return MpsPlan(tuple(daemons), present, (*left_out, *found.notes))


def still_serves(running: Sequence[str], wanted: Sequence[str], present: frozenset[str]) -> bool:
    """Whether a daemon with these GPUs may stay, since its end is the end of all its clients.

    A GPU that has gone missing does no harm in it, and may return. One that is there and is used
    in another way now has to be let go.
    """
    surplus = set(running) - set(wanted)
    return set(wanted) <= set(running) and not surplus & present
