"""What the node has: each GPU with its own figures, and why a GPU is left out."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError
from gpuslice.slicing.gpu import Gpu


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU that cannot be sliced."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    driver_version: str
    gpus: tuple[Gpu, ...]
    left_out: tuple[LeftOut, ...] = ()
    # GPUs that processes may open beside MPS, and so without limits.
    not_exclusive: tuple[Gpu, ...] = ()


def read_inventory(nvml: Nvml) -> Inventory:
    """A GPU that fails to answer is left out and does not disturb the others."""
    gpus: list[Gpu] = []
    left_out: list[LeftOut] = []
    not_exclusive: list[Gpu] = []
    for index in range(nvml.count()):
        try:
            handle = nvml.gpu(index)
            if handle.mig_enabled():
                left_out.append(LeftOut(index, "MIG is enabled: its memory is cut by MIG already"))
                continue
            gpu = _describe(handle)
            exclusive = handle.exclusive_process()
        except NvmlError as error:
            left_out.append(LeftOut(index, f"it does not answer ({error})"))
            continue
        gpus.append(gpu)
        if not exclusive:
            not_exclusive.append(gpu)
    return Inventory(nvml.driver_version(), tuple(gpus), tuple(left_out), tuple(not_exclusive))


def _describe(handle: GpuHandle) -> Gpu:
    return Gpu(
        uuid=handle.uuid(),
        index=handle.index,
        minor=handle.minor(),
        name=handle.name(),
        memory_mib=handle.memory_mib(),
        compute_capability=handle.compute_capability(),
    )
