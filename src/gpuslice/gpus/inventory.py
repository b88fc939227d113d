"""The GPUs of the node, each with its own properties, and why a GPU is skipped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.gpus.mig_capabilities import Capabilities, read_capabilities
from gpuslice.gpus.mig_devices import read_mig_devices
from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError
from gpuslice.gpus.pci import numa_node
from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.notice import Notice

# The display GPU of a DGX Station, which is not for compute.
_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})


class Platform(Enum):
    """How the GPUs of a machine are found."""

    NVML = "nvml"
    WSL = "wsl"
    TEGRA = "tegra"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A GPU, or one MIG device of it, that cannot be advertised."""

    index: int
    reason: str
    # The index of the MIG device on its GPU; None: the GPU itself.
    mig_index: int | None = None
    # It does not answer, and may answer later.
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    driver_version: str
    gpus: tuple[Gpu, ...]
    skipped: tuple[Skipped, ...] = ()
    # GPUs that processes can open without MPS, and so without limits.
    not_exclusive: tuple[Gpu, ...] = ()
    # Advertised on platforms that do not identify their GPUs.
    placeholders: tuple[Device, ...] = ()
    notices: tuple[Notice, ...] = ()
    platform: Platform = Platform.NVML


def read_inventory(nvml: Nvml, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> Inventory:
    """A GPU that does not answer is skipped and does not affect the others."""
    # The driver serves these files, so reading them may hang as well.
    reading = _Reading(sysfs, nvml.driver_calls(read_capabilities, proc))
    for index in range(nvml.count()):
        try:
            reading.add(nvml.gpu(index))
        except NvmlError as error:
            reason = f"it does not answer ({error})"
            reading.skipped.append(Skipped(index, reason, silent=True))
    return Inventory(
        nvml.driver_version(),
        tuple(reading.gpus),
        tuple(reading.skipped),
        tuple(reading.not_exclusive),
        notices=tuple(reading.notices),
    )


class _Reading:
    """Collects the properties of one GPU after the other."""

    def __init__(self, sysfs: Path, capabilities: Capabilities) -> None:
        self._sysfs = sysfs
        self._capabilities = capabilities
        self.gpus: list[Gpu] = []
        self.skipped: list[Skipped] = []
        self.not_exclusive: list[Gpu] = []
        self.notices: list[Notice] = []

    def add(self, handle: GpuHandle) -> None:
        """Raises NvmlError and adds nothing if the GPU does not answer."""
        name = handle.name()
        if name in _DISPLAYS:
            self._add_notice(
                Code.GPU_SKIPPED, f"skipping GPU {handle.index} ({name}): it is a display GPU"
            )
            return
        mig_mode = handle.mig_mode()
        mig, skipped = read_mig_devices(handle, self._capabilities) if mig_mode else ((), ())
        memory_mib = _memory_mib(handle)
        gpu = self._describe(handle, name, memory_mib, mig, mig_mode=mig_mode)
        # A GPU in MIG mode has no compute mode.
        exclusive = bool(mig_mode) or handle.exclusive_process()
        self.gpus.append(gpu)
        if not exclusive:
            self.not_exclusive.append(gpu)
        if not memory_mib:
            self._add_notice(
                Code.NO_DEVICE_MEMORY, f"GPU {handle.index} ({name}) has no memory of its own"
            )
        self.skipped.extend(
            Skipped(handle.index, one.reason, one.index, one.silent) for one in skipped
        )

    def _add_notice(self, code: Code, message: str) -> None:
        self.notices.append(Notice(code, message))

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
    """0 for GPUs that share the memory of the processor."""
    try:
        return handle.memory_mib()
    except NvmlError as error:
        if error.unsupported:
            return 0
        raise
