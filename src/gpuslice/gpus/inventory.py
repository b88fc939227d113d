"""What the node has: each GPU with its own figures, and why a GPU is left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuslice.gpus.mig_capabilities import Capabilities, read_capabilities
from gpuslice.gpus.mig_devices import read_mig_devices
from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError
from gpuslice.gpus.pci import numa_node
from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import Gpu, MigDevice

# The small GPU that drives the screen of a DGX Station; nobody computes on it.
_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU, or one MIG device of it, that cannot be offered."""

    index: int
    reason: str
    # The MIG device's place on its GPU; None if it is the GPU itself.
    mig_index: int | None = None
    # It did not answer, and may do so later.
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    driver_version: str
    gpus: tuple[Gpu, ...]
    left_out: tuple[LeftOut, ...] = ()
    # GPUs that processes may open beside MPS, and so without limits.
    not_exclusive: tuple[Gpu, ...] = ()
    # What is offered where GPUs have no identity of their own.
    stand_ins: tuple[Device, ...] = ()
    # What an operator may want to know although nothing is wrong.
    notes: tuple[str, ...] = ()


def read_inventory(nvml: Nvml, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> Inventory:
    """A GPU that fails to answer is left out and does not disturb the others."""
    reading = _Reading(sysfs, read_capabilities(proc))
    for index in range(nvml.count()):
        try:
            reading.add(nvml.gpu(index))
        except NvmlError as error:
            reason = f"it does not answer ({error})"
            reading.left_out.append(LeftOut(index, reason, silent=True))
    return Inventory(
        nvml.driver_version(),
        tuple(reading.gpus),
        tuple(reading.left_out),
        tuple(reading.not_exclusive),
        notes=tuple(reading.notes),
    )


class _Reading:
    """Collects what GPU after GPU says."""

    def __init__(self, sysfs: Path, capabilities: Capabilities) -> None:
        self._sysfs = sysfs
        self._capabilities = capabilities
        self.gpus: list[Gpu] = []
        self.left_out: list[LeftOut] = []
        self.not_exclusive: list[Gpu] = []
        self.notes: list[str] = []

    def add(self, handle: GpuHandle) -> None:
        """Raises NvmlError before anything of the GPU is kept."""
        name = handle.name()
        if name in _DISPLAYS:
            self.notes.append(f"GPU {handle.index} ({name}) drives a screen and is not offered")
            return
        mig_mode = handle.mig_mode()
        mig, undescribed = read_mig_devices(handle, self._capabilities) if mig_mode else ((), ())
        memory_mib = _memory_mib(handle)
        gpu = self._describe(handle, name, memory_mib, mig, mig_mode=mig_mode)
        # Compute modes do not exist while MIG is on.
        exclusive = bool(mig_mode) or handle.exclusive_process()
        self.gpus.append(gpu)
        if not exclusive:
            self.not_exclusive.append(gpu)
        if not memory_mib:
            self.notes.append(f"GPU {handle.index} ({name}) has no memory of its own to count")
        self.left_out.extend(
            LeftOut(handle.index, lost.reason, lost.place, lost.silent) for lost in undescribed
        )

    def _describe(
        self,
        handle: GpuHandle,
        name: str,
        memory_mib: int,
        mig: tuple[MigDevice, ...],
        *,
        mig_mode: bool | None,
    ) -> Gpu:
        minor, bus_id = handle.minor(), handle.pci_bus_id()
        return Gpu(
            uuid=handle.uuid(),
            index=handle.index,
            minor=minor,
            name=name,
            memory_mib=memory_mib,
            compute_capability=handle.compute_capability(),
            numa_node=numa_node(self._sysfs, bus_id),
            pci_bus_id=bus_id,
            nodes=(f"/dev/nvidia{minor}",),
            mig_capable=mig_mode is not None,
            mig_enabled=bool(mig_mode),
            mig=mig,
        )


def _memory_mib(handle: GpuHandle) -> int:
    """0 for GPUs that share the memory of the processor and count none as their own."""
    try:
        return handle.memory_mib()
    except NvmlError as error:
        if error.unsupported:
            return 0
        raise
