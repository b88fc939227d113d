"""A grant -> the limits its container runs under."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant


class ThreadShare(Enum):
    """How a memory slice translates into a share of the GPU's threads."""

    PROPORTIONAL = "proportional"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mib: int
    threads_percent: int | None


# The first architecture with shares of threads and limits of memory.
VOLTA = (7, 0)


def can_limit(device: Gpu | Device) -> bool:
    """Whether MPS holds its clients to a share.

    With MIG on, a process uses one MIG device, and limits cut from the card are none for it.
    """
    return device.compute_capability >= VOLTA and not device.mig_enabled


def limits_of(grant: Grant, share: ThreadShare) -> Limits:
    percent = threads_percent(grant.units, grant.gpu_units)
    return Limits(grant.memory_mib, percent if share is ThreadShare.PROPORTIONAL else None)


def threads_percent(units: int, gpu_units: int) -> int:
    """Rounded down, but never to 0: MPS accepts 1 to 100, and a 0 would be no limit at all."""
    return min(100, max(1, 100 * units // gpu_units))
