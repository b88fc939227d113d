"""Facts about a node in addition to its GPUs: driver, machine, PCI functions, fabric."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuslice.config.regular_file import read_regular_file
from gpuslice.config.settings import MACHINE_TYPE_FILE
from gpuslice.gpus.cuda import CudaError, cuda_version
from gpuslice.gpus.nvml import Fabric, Nvml, NvmlError
from gpuslice.gpus.pci import nvidia_functions, pci_class
from gpuslice.slicing.gpu import Gpu

UNKNOWN = "unknown"

# The PCI configuration space, and the capability that a hypervisor adds to a virtual GPU.
_STATUS, _HAS_CAPABILITIES = 0x06, 0x10
_FIRST_CAPABILITY = 0x34
_CONFIG_SIZE = 256
_VENDOR_SPECIFIC, _BROKEN = 0x09, 0xFF
_SIGNATURE = b"VF"
_RECORDS = 5
_VERSION_RECORD, _VERSION_LENGTH = 0, 10
_MACHINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Vgpu:
    """A virtual GPU, and the driver of its host if the hypervisor reports it."""

    host_driver_version: str | None = None
    host_driver_branch: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    # Empty and (0, 0) if unknown.
    driver_version: str = ""
    cuda_version: tuple[int, int] = (0, 0)
    machine: str = UNKNOWN
    # One per GPU; None: it cannot be read.
    pci_classes: tuple[int | None, ...] = ()
    # One per GPU that is attached to a fabric.
    fabrics: tuple[Fabric, ...] = ()
    # None: unknown, because the PCI configuration spaces cannot be read completely.
    vgpus: tuple[Vgpu, ...] | None = ()


def read_facts(
    nvml: Nvml | None,
    gpus: Sequence[Gpu],
    machine_type_file: str = MACHINE_TYPE_FILE,
    sysfs: Path = Path("/sys"),
) -> NodeFacts:
    """Blocks. `nvml` is None on a machine without NVML, for example Tegra.

    Raises NvmlError if the driver does not report its version. Any other fact that cannot be read
    is unknown.
    """
    return NodeFacts(
        driver_version=nvml.driver_version() if nvml else "",
        cuda_version=nvml.cuda_version() if nvml else _cuda_version(),
        machine=_machine(machine_type_file),
        pci_classes=tuple(pci_class(sysfs, gpu.pci_bus_id) for gpu in gpus),
        fabrics=tuple(_fabrics(nvml, gpus)) if nvml else (),
        vgpus=_vgpus(sysfs),
    )


def vgpu_of(config: bytes) -> Vgpu | None:
    """Parses a PCI configuration space. None: the function is not a virtual GPU."""
    capability = _vendor_capability(config)
    if capability[3:5] != _SIGNATURE:
        return None
    position = _RECORDS
    while position + 1 < len(capability) and capability[position] != _VERSION_RECORD:
        length = capability[position + 1]
        if length == 0:
            return Vgpu()
        position += length
    version = position + 2
    branch = version + _VERSION_LENGTH
    end = branch + _VERSION_LENGTH
    if end > len(capability):
        return Vgpu()
    return Vgpu(_text(capability[version:branch]), _text(capability[branch:end]))


def _vendor_capability(config: bytes) -> bytes:
    if not config[_STATUS] & _HAS_CAPABILITIES:
        return b""
    position = config[_FIRST_CAPABILITY]
    visited: set[int] = set()
    while position and position not in visited and position + 2 < len(config):
        visited.add(position)
        kind, following, length = config[position : position + 3]
        if kind == _BROKEN:
            break
        if kind == _VENDOR_SPECIFIC:
            return config[position : position + length]
        position = following
    return b""


def _text(raw: bytes) -> str:
    return raw.strip(b"\0").decode("ascii", "replace")


def _vgpus(sysfs: Path) -> tuple[Vgpu, ...] | None:
    found: list[Vgpu] = []
    try:
        for function in nvidia_functions(sysfs):
            config = (function / "config").read_bytes()
            if len(config) < _CONFIG_SIZE:  # unprivileged processes can read a part only
                return None
            vgpu = vgpu_of(config)
            if vgpu is not None:
                found.append(vgpu)
    except OSError:
        return None
    return tuple(found)


def _fabrics(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Fabric]:
    for gpu in gpus:
        with contextlib.suppress(NvmlError):
            fabric = nvml.gpu(gpu.index).fabric()
            if fabric is not None:
                yield fabric


def _machine(path: str) -> str:
    """Of a regular file only: a label holds 63 characters, and a device may never end."""
    try:
        content = read_regular_file(Path(path), _MACHINE_BYTES) if path else None
    except OSError:
        return UNKNOWN
    return UNKNOWN if content is None else content.decode("utf-8", "replace").strip()


def _cuda_version() -> tuple[int, int]:
    try:
        return cuda_version()
    except CudaError:
        return (0, 0)
