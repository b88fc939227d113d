"""The GPU as the rest of gpuslice knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU. `minor` is the N of /dev/nvidiaN; it may differ from the NVML index."""

    uuid: str
    index: int
    minor: int
    name: str
    memory_mib: int
    compute_capability: tuple[int, int] = (0, 0)
