"""The GPU as the rest of gpuslice knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device of a GPU. `index` counts the devices of its GPU as NVML does."""

    uuid: str
    index: int
    gpu_instance: int
    compute_instance: int
    # As NVIDIA writes it: 1g.5gb, 1g.10gb+me, 1c.3g.20gb.
    profile: str
    memory_mib: int
    multiprocessors: int = 0
    # Slices of the GPU instance and of the compute instance.
    slices: tuple[int, int] = (0, 0)
    # copy, decoder, encoder, jpeg, ofa
    engines: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    # Device nodes beside the parent's: the capabilities of its two instances.
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU. `minor` is the N of /dev/nvidiaN; it may differ from the NVML index."""

    uuid: str
    index: int
    minor: int
    name: str
    memory_mib: int
    compute_capability: tuple[int, int] = (0, 0)
    numa_node: int | None = None
    # As sysfs writes it: 0000:3b:00.0.
    pci_bus_id: str = ""
    nodes: tuple[str, ...] = ()
    mig_capable: bool = False
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    # 0: unknown.
    multiprocessors: int = 0
    # What the driver keeps of the memory for itself; None: unknown.
    reserved_mib: int | None = None
