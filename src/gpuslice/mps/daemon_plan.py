"""Settings and hardware -> the MPS daemons of a node; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.slicing.catalogue import DeviceOffer, Offered, catalogue
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.request import Requested, mps_limits
from gpuslice.slicing.rules import SharingStrategy


@dataclass(frozen=True, slots=True)
class Wanted:
    """The daemon of one resource, and the UUIDs of the GPUs that it serves, in their order."""

    resource: str
    gpus: tuple[str, ...]
    # The most that one container can have of each GPU.
    most: tuple[Limits, ...]
    # Whether a container may have several replicas of a GPU.
    merges: bool


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


def plan_daemons(settings: Settings, own: Inventory, node: Inventory | None = None) -> MpsPlan:
    """`node`: all that is there, if `own` is a part of it.

    Raises SlicingError as the agent does: what it cannot offer needs no daemon.
    """
    found = catalogue(own.gpus, settings.rules, own.stand_ins)
    daemons = tuple(
        _daemon(offer) for offer in found.resources if offer.strategy is SharingStrategy.MPS
    )
    # A GPU that is another node's now is there, and has to be let go.
    present = frozenset(gpu.uuid for gpu in (node or own).gpus)
    left_out = (
        f"GPU {gpu.index} is left out: {gpu.reason}"
        for gpu in own.left_out
        if gpu.mig_index is None
    )
    return MpsPlan(daemons, present, (*left_out, *found.notes))


def still_serves(running: Sequence[str], wanted: Sequence[str], present: frozenset[str]) -> bool:
    """Whether a daemon with these GPUs may stay, since its end is the end of all its clients.

    A GPU that has gone missing does no harm in it, and may return. One that is there and is used
    in another way now has to be let go.
    """
    surplus = set(running) - set(wanted)
    return set(wanted) <= set(running) and not surplus & present


def _daemon(offer: DeviceOffer) -> Wanted:
    # Devices without replicas are whole GPUs of the same name, which MPS leaves alone.
    shared = [offered for offered in offer.devices if offered.replicas]
    merges = not offer.fail_requests_greater_than_one
    return Wanted(
        offer.name,
        tuple(offered.device.uuid for offered in shared),
        tuple(_most(offered, merges=merges) for offered in shared),
        merges,
    )


def _most(offered: Offered, *, merges: bool) -> Limits:
    """By the figures that containers get, so that a default of it never cuts into theirs."""
    replicas = offered.replicas
    asked = replicas if merges else 1
    return mps_limits(Requested(offered.device, asked, replicas, offered.reserve_mib))
