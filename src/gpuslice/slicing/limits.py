"""Limits that MPS enforces, and the hardware that it can enforce them on."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import Gpu

# The first architecture with limits of threads and memory.
VOLTA = (7, 0)
# CUDA contexts that MPS serves per GPU at its default settings. Drivers from 590 on serve more.
MPS_CLIENTS_PER_GPU = 48


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mib: int
    # None: no limit.
    threads_percent: int | None


def can_limit(device: Gpu | Device) -> bool:
    """Whether MPS enforces limits on the clients of this device.

    With MIG on, a process uses one MIG device, and a limit that is derived from the whole GPU does
    not limit it.
    """
    return device.compute_capability >= VOLTA and not device.mig_enabled


def why_not_limited(device: Gpu | Device) -> str:
    """Completes "skipping GPU 0: …" for a device that `can_limit` rejects."""
    if device.mig_enabled:
        return "MIG is enabled, and MPS cannot limit the clients of a whole GPU in MIG mode"
    major, minor = device.compute_capability
    return f"MPS has limits from compute capability 7.0 on, and this GPU has {major}.{minor}"
