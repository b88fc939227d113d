"""The number of SMs of a GPU. NVML reports the number of its cores."""

from __future__ import annotations

from gpuslice.gpus.nvml import GpuHandle, NvmlError

_CORES_PER_SM = {
    (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64,
    (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 1): 128, (10, 3): 128,
    (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip


def read_multiprocessors(handle: GpuHandle, compute_capability: tuple[int, int]) -> int:
    """0 if it is unknown: the architecture is, or the driver does not report the cores."""
    per_sm = _CORES_PER_SM.get(compute_capability)
    if per_sm is None:
        return 0
    try:
        cores = handle.cores()
    except NvmlError as error:
        if error.unsupported or error.missing:
            return 0
        raise
    return cores // per_sm if cores % per_sm == 0 else 0
