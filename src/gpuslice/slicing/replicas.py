"""Named devices and replica rules -> which devices are shared, and by which rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuslice.codes import Code
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.limits import MPS_CLIENTS_PER_GPU, can_limit, why_not_limited
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.resource_names import NamedDevice
from gpuslice.slicing.rules import Overcommit, ReplicaRule, SharingStrategy
from gpuslice.slicing.selection import Selected, by_index, listed, refers_to, select
from gpuslice.slicing.shares import EqualShares, excess, roundings, shares_of, why_too_small

_FIELDS = {SharingStrategy.TIME_SLICING: "sharing.timeSlicing", SharingStrategy.MPS: "sharing.mps"}


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device in a resource, and the rule that shares it, if any.

    A device whose shares have names is in several resources.
    """

    device: Device
    resource: str
    rule: ReplicaRule | None = None
    nested: bool | None = None
    # Its shares in this resource, if there is a rule.
    shares: EqualShares | None = None


@dataclass(frozen=True, slots=True)
class NotShareable:
    """A device of the node that no rule can share, and the reason, which follows its name."""

    device: Device
    because: str


def apply_replica_rules(
    devices: Sequence[NamedDevice],
    rules: Sequence[ReplicaRule],
    not_shareable: Sequence[NotShareable] = (),
) -> tuple[list[SharedDevice], list[Notice]]:
    """A device that a rule names and the node lacks is a notice: nodes share configurations."""
    claims: dict[str, ReplicaRule] = {}
    notices: list[Notice] = []
    for rule in rules:
        selected = select(rule.devices, [n.device for n in devices if n.name == rule.name])
        notices += _shortfalls(rule, selected, devices, not_shareable)
        _check_replicas(rule, selected.devices)
        for device in selected.devices:
            _check_unclaimed(device, rule, claims.get(device.uuid))
            claims[device.uuid] = rule
    shared: list[SharedDevice] = []
    for entry in devices:
        claim = claims.get(entry.device.uuid)
        obstacle = _obstacle(entry.device, claim) if claim else None
        if obstacle is not None:
            message = f"skipping device {listed([entry.device])}: {obstacle}"
            notices.append(Notice(Code.GPU_SKIPPED, message))
        elif claim is None:
            shared.append(SharedDevice(entry.device, entry.name, nested=entry.nested))
        else:
            found = shares_of(entry.device, claim)
            notices += _overcommitted(entry.device, claim, found)
            notices += [
                Notice(Code.THREADS_ROUNDED, f"device {listed([entry.device])}: {reason}")
                for reason in roundings(entry.device, claim)
            ]
            nested = entry.nested if claim.nested is None else claim.nested
            shared += [
                SharedDevice(entry.device, one.resource, claim, nested, one) for one in found
            ]
    return shared, notices


def _overcommitted(
    device: Device, rule: ReplicaRule, shares: Sequence[EqualShares]
) -> Iterator[Notice]:
    more = excess(device, rule, shares) if rule.overcommit is not Overcommit.ALLOW else None
    if rule.strategy is not SharingStrategy.MPS or more is None:
        return
    message = f"{_field(rule)}: all shares of device {listed([device])} together have {more}"
    if rule.overcommit is Overcommit.REFUSE:
        raise SlicingError(
            Code.OVERCOMMITTED,
            f"{message}. Use smaller shares, or set sharing.mps.overcommit to warn or allow",
        )
    yield Notice(Code.OVERCOMMITTED, message)


def _obstacle(device: Device, rule: ReplicaRule) -> str | None:
    """Why the device cannot be shared. MPS shares only what it can limit."""
    if rule.strategy is not SharingStrategy.MPS:
        return None
    if device.is_mig:
        return "MPS sharing of MIG devices is not supported. Use sharing.timeSlicing for it"
    if device.mig_enabled:
        return (
            f"{why_not_limited(device)}. Disable MIG on it, or advertise its MIG devices "
            "(migStrategy single or mixed, without sharing.mps)"
        )
    if not can_limit(device):
        return f"{why_not_limited(device)}. Use sharing.timeSlicing for it"
    return why_too_small(device, rule)


def _check_replicas(rule: ReplicaRule, devices: Sequence[Device]) -> None:
    field = f"{_field(rule)} {_count(rule)}"
    if rule.replicas < 1:
        raise SlicingError(Code.INVALID_REPLICAS, f"{field}: use 1 or more")
    limitable = [device for device in devices if can_limit(device)]
    if rule.strategy is SharingStrategy.MPS and limitable and rule.replicas > MPS_CLIENTS_PER_GPU:
        raise SlicingError(
            Code.INVALID_REPLICAS,
            f"{field}: maximum allowed replicas exceeded: MPS serves {MPS_CLIENTS_PER_GPU} clients "
            f"per GPU. Use at most {MPS_CLIENTS_PER_GPU}",
        )


def _check_unclaimed(device: Device, rule: ReplicaRule, claimed: ReplicaRule | None) -> None:
    if claimed is None:
        return
    raise SlicingError(
        Code.CONFLICTING_RULES,
        f"two rules select device {listed([device])} of {rule.name}: {_described(claimed)} and "
        f"{_described(rule)}. List different devices in each rule (devices)",
    )


def _shortfalls(
    rule: ReplicaRule,
    selected: Selected,
    devices: Sequence[NamedDevice],
    not_shareable: Sequence[NotShareable],
) -> list[Notice]:
    if not any(entry.name == rule.name for entry in devices) and not selected.unmatched:
        names = ", ".join(sorted({entry.name for entry in devices})) or "nothing"
        message = f"{_field(rule)} has no effect: this node has {names} to share"
        return [Notice(Code.RULE_WITHOUT_EFFECT, message)]
    messages = [
        f"{_field(rule)} devices: {_why_unmatched(reference, rule, devices, not_shareable)}"
        for reference in selected.unmatched
    ]
    if selected.short_by:
        messages.append(
            f"{_field(rule)} devices: {rule.devices.count} are configured and the node has "
            f"{len(selected.devices)}"
        )
    return [Notice(Code.DEVICE_NOT_FOUND, message) for message in messages]


def _why_unmatched(
    reference: str,
    rule: ReplicaRule,
    devices: Sequence[NamedDevice],
    not_shareable: Sequence[NotShareable],
) -> str:
    for entry in devices:
        if refers_to(reference, entry.device):
            return f"{reference} is advertised as {entry.name}, not as {rule.name}"
    for other in not_shareable:
        if refers_to(reference, other.device):
            return f"{reference} {other.because}"
    present = sorted((n.device for n in devices if n.name == rule.name), key=by_index)
    return f"{reference} is not on this node, which has {listed(present)}"


def _field(rule: ReplicaRule) -> str:
    return f"{_FIELDS.get(rule.strategy, 'sharing')} {rule.name}"


def _described(rule: ReplicaRule) -> str:
    return f"{_field(rule)} ({_count(rule)})"


def _count(rule: ReplicaRule) -> str:
    return f"{'shares' if rule.shares else 'replicas'}: {rule.replicas}"
