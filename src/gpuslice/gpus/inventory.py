"""The GPUs of the node, each with its own properties, and why a GPU is skipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.gpus.kernel_gpus import read_kernel_gpus
from gpuslice.gpus.mig_capabilities import Capabilities, read_capabilities
from gpuslice.gpus.mig_devices import read_mig_devices
from gpuslice.gpus.multiprocessors import read_multiprocessors
from gpuslice.gpus.nvml import GpuHandle, Nonsense, Nvml, NvmlError
from gpuslice.gpus.pci import numa_node
from gpuslice.gpus.plausible import duplicate_mig_uuids, duplicates, gpu_problem
from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.notice import Notice

# The display GPU of a DGX Station, which is not for compute.
_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})
_SYSFS, _PROC = Path("/sys"), Path("/proc")


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
    # It does not answer, or not with what can be true, and may do so later.
    silent: bool = False
    code: Code = Code.GPU_SKIPPED


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


def read_inventory(nvml: Nvml, sysfs: Path = _SYSFS, proc: Path = _PROC) -> Inventory:
    """A GPU that does not answer, or reports what cannot be true, does not affect the others."""
    reading = _Reading(nvml, sysfs, proc)
    for index in range(nvml.count()):
        reading.try_to_add(index)
    reading.skip_duplicates()
    return Inventory(
        nvml.driver_version(),
        tuple(reading.gpus),
        tuple(reading.skipped),
        tuple(reading.not_exclusive),
        notices=tuple(reading.notices),
    )


def can_be_read(nvml: Nvml, index: int, sysfs: Path = _SYSFS, proc: Path = _PROC) -> bool:
    """Whether a GPU that was skipped would be skipped again."""
    reading = _Reading(nvml, sysfs, proc)
    reading.try_to_add(index)
    return not any(one.mig_index is None for one in reading.skipped)


class _Reading:
    """Collects the properties of one GPU after the other."""

    def __init__(self, nvml: Nvml, sysfs: Path, proc: Path) -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        # The driver serves these files, so reading them may hang as well.
        self._capabilities: Capabilities = nvml.driver_calls(read_capabilities, proc)
        self._kernel = nvml.driver_calls(read_kernel_gpus, proc)
        self.gpus: list[Gpu] = []
        self.skipped: list[Skipped] = []
        self.not_exclusive: list[Gpu] = []
        self.notices: list[Notice] = []

    def try_to_add(self, index: int) -> None:
        try:
            self._add(self._nvml.gpu(index))
        except Nonsense as error:
            self._skip_implausible(index, str(error))
        except NvmlError as error:
            self.skipped.append(Skipped(index, f"it does not answer ({error})", silent=True))
        except Exception as error:  # noqa: BLE001 (whatever it is, it concerns this GPU only)
            self._skip_implausible(index, repr(error))

    def skip_duplicates(self) -> None:
        wrong = duplicates(self.gpus, self._kernel)
        for index, reason in wrong.items():
            self._skip_implausible(index, reason)
        self.gpus = [gpu for gpu in self.gpus if gpu.index not in wrong]
        self.not_exclusive = [gpu for gpu in self.not_exclusive if gpu.index not in wrong]
        uuids = duplicate_mig_uuids(self.gpus)
        for gpu in self.gpus if uuids else ():
            self.skipped.extend(
                Skipped(gpu.index, f"another one has the UUID {mig.uuid} as well", mig.index)
                for mig in gpu.mig
                if mig.uuid in uuids
            )
        if uuids:
            self.gpus = [
                replace(gpu, mig=tuple(mig for mig in gpu.mig if mig.uuid not in uuids))
                for gpu in self.gpus
            ]

    def _skip_implausible(self, index: int, reason: str) -> None:
        message = f"the driver reports what cannot be true: {reason}"
        self.skipped.append(Skipped(index, message, silent=True, code=Code.GPU_IMPLAUSIBLE))

    def _add(self, handle: GpuHandle) -> None:
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
        problem = gpu_problem(gpu)
        if problem is not None:
            raise Nonsense(problem)
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
        capability = handle.compute_capability()
        return Gpu(
            uuid=handle.uuid(),
            index=handle.index,
            minor=minor,
            name=name,
            memory_mib=memory_mib,
            reserved_mib=_reserved_mib(handle, memory_mib),
            compute_capability=capability,
            multiprocessors=read_multiprocessors(handle, capability),
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
        memory_mib = handle.memory_mib()
    except NvmlError as error:
        if error.unsupported:
            return 0
        raise
    if not memory_mib:
        raise Nonsense("it has 0 MiB of memory")
    return memory_mib


def _reserved_mib(handle: GpuHandle, memory_mib: int) -> int | None:
    """None if the driver does not tell, or if it cannot be true."""
    reserved_mib = handle.reserved_mib()
    return reserved_mib if reserved_mib is not None and reserved_mib < memory_mib else None
