"""What MPS can do on which hardware and driver."""

from __future__ import annotations

from gpuslice.slicing.gpu import Gpu

_VOLTA = (7, 0)
_FIRST_BRANCH_WITH_60_CLIENTS = 590


def can_limit(gpu: Gpu) -> bool:
    """Shares of threads and memory limits exist from Volta on."""
    return gpu.compute_capability >= _VOLTA


def most_clients(driver_version: str) -> int:
    """CUDA contexts that MPS serves per GPU (Volta and newer) at its default settings."""
    branch = driver_version.partition(".")[0]
    new = branch.isdigit() and int(branch) >= _FIRST_BRANCH_WITH_60_CLIENTS
    return 60 if new else 48
