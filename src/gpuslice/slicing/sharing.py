"""Named devices and replica rules -> what is offered, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.limits import can_limit
from gpuslice.slicing.naming import Named
from gpuslice.slicing.rules import ReplicaRule, SharingStrategy
from gpuslice.slicing.selection import Selected, by_index, listed, means, select

# From Volta on, MPS has limits, and serves this many clients per GPU at its default settings.
_MOST_MPS_CLIENTS = 48
_FIELDS = {SharingStrategy.TIME_SLICING: "sharing.timeSlicing", SharingStrategy.MPS: "sharing.mps"}


@dataclass(frozen=True, slots=True)
class Shared:
    """A device, the resource it ends up in, and the rule that replicates it, if one does."""

    device: Device
    name: str
    rule: ReplicaRule | None = None
    nested: bool | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A device of the node that cannot be shared, and the reason, which follows its name."""

    device: Device
    because: str


def shared(
    devices: Sequence[Named], rules: Sequence[ReplicaRule], absent: Sequence[Absent] = ()
) -> tuple[list[Shared], list[str]]:
    """What a rule names and this node has not is a note: one configuration serves unequal nodes."""
    claims: dict[str, ReplicaRule] = {}
    notes: list[str] = []
    for rule in rules:
        chosen = select(rule.devices, [n.device for n in devices if n.name == rule.name])
        notes += _shortfalls(rule, chosen, devices, absent)
        _check_replicas(rule, chosen.devices)
        for device in chosen.devices:
            _check_unclaimed(device, rule, claims.get(device.uuid))
            claims[device.uuid] = rule
    offered: list[Shared] = []
    for entry in devices:
        rule_of = claims.get(entry.device.uuid)
        obstacle = _unlimitable(entry.device, rule_of) if rule_of else None
        if obstacle is not None:
            notes.append(f"device {listed([entry.device])} is not offered: {obstacle}")
        else:
            offered.append(_shared(entry, rule_of))
    return offered, notes


def _shared(entry: Named, rule: ReplicaRule | None) -> Shared:
    if rule is None:
        return Shared(entry.device, entry.name, nested=entry.nested)
    nested = entry.nested if rule.nested is None else rule.nested
    return Shared(entry.device, rule.rename or entry.name, rule, nested)


def _unlimitable(device: Device, rule: ReplicaRule) -> str | None:
    """Why the device cannot be held to its share. What cannot be limited is not shared by MPS."""
    if rule.strategy is not SharingStrategy.MPS:
        return None
    if device.is_mig:
        return "MPS sharing of MIG devices is not supported. Use sharing.timeSlicing for it"
    if device.mig_enabled:
        return (
            "it is in MIG mode, where MPS cannot limit the clients of a whole GPU. Switch its MIG "
            "mode off, or offer its MIG devices (migStrategy single or mixed, without sharing.mps)"
        )
    if not can_limit(device):
        have = ".".join(map(str, device.compute_capability))
        return (
            f"its compute capability is {have} and MPS has limits from 7.0 on. "
            "Use sharing.timeSlicing for it"
        )
    if device.memory_mib - rule.reserve_mib < rule.replicas:
        return _too_small(device, rule)
    return None


def _too_small(device: Device, rule: ReplicaRule) -> str:
    shares = f"cannot be split into {rule.replicas} shares"
    if not rule.reserve_mib:
        return f"its memory of {device.memory_mib} MiB {shares}"
    return (
        f"its memory of {device.memory_mib} MiB, of which sharing.mps.reserve keeps "
        f"{rule.reserve_mib} MiB, {shares}. Use a smaller reserve"
    )


def _check_replicas(rule: ReplicaRule, devices: Sequence[Device]) -> None:
    field = f"{_field(rule)} replicas: {rule.replicas}"
    if rule.replicas < 1:
        raise SlicingError(f"{field}: use 1 or more")
    limitable = [device for device in devices if can_limit(device)]
    if rule.strategy is SharingStrategy.MPS and limitable and rule.replicas > _MOST_MPS_CLIENTS:
        raise SlicingError(
            f"{field}: maximum allowed replicas exceeded, as MPS serves {_MOST_MPS_CLIENTS} "
            f"clients per GPU. Use at most {_MOST_MPS_CLIENTS}"
        )


def _check_unclaimed(device: Device, rule: ReplicaRule, claimed: ReplicaRule | None) -> None:
    if claimed is None:
        return
    raise SlicingError(
        f"device {listed([device])} of {rule.name} is selected by two rules: "
        f"{_described(claimed)} and {_described(rule)}. Name its devices in each rule (devices), "
        "so that they do not overlap"
    )


def _shortfalls(
    rule: ReplicaRule, chosen: Selected, devices: Sequence[Named], absent: Sequence[Absent]
) -> list[str]:
    if not any(entry.name == rule.name for entry in devices) and not chosen.unmatched:
        names = ", ".join(sorted({entry.name for entry in devices})) or "nothing"
        return [f"{_field(rule)} has no effect: this node has {names} to share"]
    notes = [
        f"{_field(rule)} devices: {_why_unmatched(reference, rule, devices, absent)}"
        for reference in chosen.unmatched
    ]
    if chosen.short_by:
        notes.append(
            f"{_field(rule)} devices: {rule.devices.count} are wanted and there are "
            f"{len(chosen.devices)}"
        )
    return notes


def _why_unmatched(
    reference: str, rule: ReplicaRule, devices: Sequence[Named], absent: Sequence[Absent]
) -> str:
    for entry in devices:
        if means(reference, entry.device):
            return f"{reference} is offered as {entry.name}, not as {rule.name}"
    for missing in absent:
        if means(reference, missing.device):
            return f"{reference} {missing.because}"
    present = sorted((n.device for n in devices if n.name == rule.name), key=by_index)
    return f"{reference} is not on this node, which has {listed(present)}"


def _field(rule: ReplicaRule) -> str:
    return f"{_FIELDS.get(rule.strategy, 'sharing')} {rule.name}"


def _described(rule: ReplicaRule) -> str:
    return f"{_field(rule)} (replicas: {rule.replicas})"
