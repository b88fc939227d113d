"""Device ids -> what a container gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.codes import Code
from gpuslice.slicing.device_ids import printable
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.pool import Part, Pool


@dataclass(frozen=True, slots=True)
class GrantedPart:
    """`count` shares of one device."""

    part: Part
    count: int

    @property
    def limits(self) -> Limits:
        return self.part.share.times(self.count)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one container gets: each device once, in the order of the request."""

    pool: Pool
    parts: tuple[GrantedPart, ...]

    @property
    def count(self) -> int:
        return sum(granted.count for granted in self.parts)


def grant(pool: Pool, ids: Sequence[str]) -> Grant:
    """A pure function of the ids, so it is right after any restart and needs no API server.

    Raises GrantRefused. Its messages contain the words of NVIDIA's device plugin, which people
    search for.
    """
    if not ids:
        raise GrantRefused(Code.EMPTY_REQUEST, "invalid request: it names no devices")
    if len(set(ids)) < len(ids):
        [(twice, _)] = Counter(ids).most_common(1)
        raise GrantRefused(
            Code.DUPLICATE_DEVICE,
            f"invalid request: device {printable(twice)} is named more than once",
        )
    counts = Counter(_position(pool, device_id) for device_id in ids)
    granted = Grant(pool, tuple(GrantedPart(pool.parts[p], n) for p, n in counts.items()))
    if any(one.part.is_shared for one in granted.parts):
        _check_shared(granted)
    return granted


def _position(pool: Pool, device_id: str) -> int:
    position = pool.owners.get(device_id)
    if position is None:
        raise GrantRefused(
            Code.UNKNOWN_DEVICE,
            f"invalid request: unknown device: {printable(device_id)}. Its GPU is gone, or is now "
            f"advertised in another way ({_summary(pool)}). Delete the pod so that it is "
            "scheduled again",
        )
    return position


def _summary(pool: Pool) -> str:
    unit = f" of {pool.unit}" if pool.unit else ""
    return f"this node has {pool.count} devices{unit} on {len(pool.parts)} GPUs or MIG devices"


def _check_shared(granted: Grant) -> None:
    pool, count = granted.pool, granted.count
    if count > 1 and pool.one_share_per_container:
        raise GrantRefused(
            Code.REQUEST_TOO_LARGE,
            f"invalid request: maximum request size for shared resources is 1; found {count}. "
            "Request 1, or set failRequestsGreaterThanOne to false",
        )
    if len(granted.parts) > 1 and pool.one_gpu_per_container:
        raise GrantRefused(Code.SPANS_GPUS, _spans(granted))


def _spans(granted: Grant) -> str:
    amounts = ", ".join(
        f"{_amount(granted.pool, one.count)} on GPU {one.part.device.index}"
        for one in sorted(granted.parts, key=lambda one: granted.pool.parts.index(one.part))
    )
    return (
        f"invalid request: no single GPU of this node has {_amount(granted.pool, granted.count)} "
        f"free: the request would be spread ({amounts}), and a container gets its share from one "
        "GPU. Request less, or wait until another pod ends"
    )


def _amount(pool: Pool, count: int) -> str:
    return f"{count} replicas" if pool.unit is None else pool.unit.describe(count)
