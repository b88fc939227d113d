"""A device and the rule that shares it -> its shares, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpuslice.slicing.device import Device
from gpuslice.slicing.device_ids import DeviceIds, named_ids, replica_ids
from gpuslice.slicing.pool import Share
from gpuslice.slicing.rules import ReplicaRule, SharingStrategy
from gpuslice.slicing.threads import (
    ThreadRule,
    Threads,
    share_of_threads,
    why_no_partitions,
    why_no_threads,
    why_rounded,
)
from gpuslice.slicing.units import describe_mib


@dataclass(frozen=True, slots=True)
class EqualShares:
    """Shares of a device that have the same limits and belong to the same resource."""

    resource: str
    ids: DeviceIds
    share: Share


def shares_of(device: Device, rule: ReplicaRule) -> tuple[EqualShares, ...]:
    """Equal replicas, or an entry for each share that the rule names."""
    available = device.memory_mib - rule.reserve_mib
    if not rule.shares:
        # By whole MiB, so that all replicas of a GPU together never get more than it has.
        threads = _threads(rule.threads, Fraction(1, rule.replicas), device, rule)
        share = Share(available // rule.replicas, threads)
        return (EqualShares(rule.resource, replica_ids(device.uuid, rule.replicas), share),)
    return tuple(
        EqualShares(
            rule.resource_of(one),
            named_ids(device.uuid, one.name, one.count),
            Share(
                one.memory_mib,
                _threads(one.threads, _part(one.memory_mib, available), device, rule),
            ),
        )
        for one in rule.shares
    )


def why_too_small(device: Device, rule: ReplicaRule) -> str | None:
    """Completes "skipping device 0: …" for a device that cannot have these shares."""
    if not rule.shares:
        if device.memory_mib - rule.reserve_mib < rule.replicas:
            return _cannot_be_divided(device, rule)
        return why_no_threads(rule.threads, device.multiprocessors) or why_no_partitions(
            rule.threads, device.compute_capability
        )
    for one in rule.shares:
        if one.memory_mib > device.memory_mib:
            return (
                f"its memory of {device.memory_mib} MiB is smaller than the share {one.name} of "
                f"{describe_mib(one.memory_mib)}. Use a smaller share, or select other devices"
            )
        reason = why_no_threads(one.threads, device.multiprocessors)
        if reason is not None:
            return f"share {one.name}: {reason}"
    return None


def roundings(device: Device, rule: ReplicaRule) -> Iterator[str]:
    """A sentence for each number of SMs that MPS rounds on this device."""
    if not rule.shares:
        reasons = [why_rounded(rule.threads, device.multiprocessors)]
    else:
        reasons = [
            f"share {one.name}: {reason}"
            for one in rule.shares
            if (reason := why_rounded(one.threads, device.multiprocessors))
        ]
    return filter(None, reasons)


def excess(device: Device, rule: ReplicaRule, shares: Sequence[EqualShares]) -> str | None:
    """What all shares of the device together have more than it has, in words; None: nothing.

    Limits that are the same for every container, however many shares it has, are not added: it is
    intended that they exceed the device (`uniform-half`).
    """
    return " and ".join(_excesses(device, rule, shares)) or None


def _excesses(device: Device, rule: ReplicaRule, shares: Sequence[EqualShares]) -> Iterator[str]:
    memory_mib = sum(len(one.ids) * one.share.memory_mib for one in shares)
    if memory_mib > device.memory_mib - rule.reserve_mib:
        reserved = f" ({rule.reserve_mib} MiB are reserved)" if rule.reserve_mib else ""
        yield f"{memory_mib} MiB of its {device.memory_mib} MiB of memory{reserved}"
    threads = [(len(one.ids), one.share.threads) for one in shares]
    percent = sum(count * one.percent for count, one in threads if one is not None and one.adds_up)
    if percent > 100:
        yield f"{float(percent):.4g}% of its threads"


def _threads(
    rule: ThreadRule, portion: Fraction, device: Device, sharing: ReplicaRule
) -> Threads | None:
    if sharing.strategy is not SharingStrategy.MPS:
        return None
    return share_of_threads(rule, sharing.replicas, portion, device.multiprocessors)


def _part(memory_mib: int, available: int) -> Fraction:
    return min(Fraction(1), Fraction(memory_mib, available)) if available > 0 else Fraction(1)


def _cannot_be_divided(device: Device, rule: ReplicaRule) -> str:
    shares = f"cannot be divided into {rule.replicas} shares"
    if not rule.reserve_mib:
        return f"its memory of {device.memory_mib} MiB {shares}"
    return (
        f"its memory of {device.memory_mib} MiB, of which sharing.mps.reserve keeps "
        f"{rule.reserve_mib} MiB, {shares}. Use a smaller reserve"
    )
