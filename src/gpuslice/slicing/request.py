"""Device ids -> the devices a container gets, and the limits its replicas come with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.slicing.catalogue import DeviceOffer
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.ids import printable
from gpuslice.slicing.limits import Limits, ThreadShare, threads_percent
from gpuslice.slicing.rules import SharingStrategy


@dataclass(frozen=True, slots=True)
class Requested:
    """One device of a request: `replicas_asked` of its `replicas`, both 0 if it is not shared."""

    device: Device
    replicas_asked: int
    replicas: int
    # Memory of the device that no replica is promised.
    reserve_mib: int = 0


def devices_of(offer: DeviceOffer, ids: Sequence[str]) -> tuple[Requested, ...]:
    """A pure function of the ids, in their order; each device once, however many its replicas.

    The messages hold the words that NVIDIA's device plugin uses, for those who look them up.
    """
    if not ids:
        raise GrantRefused("invalid request: it names no devices")
    if len(set(ids)) < len(ids):
        [(twice, _)] = Counter(ids).most_common(1)
        raise GrantRefused(f"invalid request: device {printable(twice)} is named more than once")
    asked = Counter(_owner(offer, device_id) for device_id in ids)
    requested = tuple(_requested(offer, position, count) for position, count in asked.items())
    if any(one.replicas for one in requested):
        _check_shared(offer, requested, len(ids))
    return requested


def mps_limits(requested: Requested, share: ThreadShare = ThreadShare.PROPORTIONAL) -> Limits:
    """N replicas of a GPU are N times the limits of one. An unshared device is limited to itself.

    Memory is split by whole MiB before it is multiplied, so that all replicas of a GPU together
    never get more than it has, less the reserve.
    """
    asked, replicas = max(1, requested.replicas_asked), max(1, requested.replicas)
    total = requested.device.memory_mib - requested.reserve_mib
    percent = threads_percent(asked, replicas)
    return Limits(
        memory_mib=min(total, total // replicas * asked),
        threads_percent=percent if share is ThreadShare.PROPORTIONAL else None,
    )


def _owner(offer: DeviceOffer, device_id: str) -> int:
    position = offer.owners.get(device_id)
    if position is None:
        raise GrantRefused(
            f"invalid request: unknown device: {printable(device_id)} (it is gone, or is now "
            "offered in another way). Delete the pod so that it is placed anew"
        )
    return position


def _requested(offer: DeviceOffer, position: int, count: int) -> Requested:
    offered = offer.devices[position]
    asked = count if offered.replicas else 0
    return Requested(offered.device, asked, offered.replicas, offered.reserve_mib)


def _check_shared(offer: DeviceOffer, requested: Sequence[Requested], count: int) -> None:
    if count > 1 and offer.fail_requests_greater_than_one:
        raise GrantRefused(
            f"invalid request: maximum request size for shared resources is 1; found {count}. "
            "Ask for 1, or have failRequestsGreaterThanOne set to false"
        )
    if len(requested) > 1 and offer.strategy is SharingStrategy.MPS:
        indices = ", ".join(one.device.index for one in requested)
        raise GrantRefused(
            f"invalid request: no single GPU has {count} replicas free, and those of GPUs "
            f"{indices} cannot be joined: an MPS limit holds on one GPU. "
            "Ask for fewer, or wait until some are freed"
        )
