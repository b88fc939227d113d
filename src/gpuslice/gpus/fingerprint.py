"""Detects that the GPUs of the node differ from the inventory, without a new enumeration.

NVML enumerates at initialisation only, so hot-plug is detected in sysfs. Changes of MIG devices are
detected through the open NVML session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.gpus.inventory import Inventory, Skipped, can_be_read
from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError
from gpuslice.gpus.pci import gpu_functions
from gpuslice.slicing.gpu import Gpu

_NO_DRIVER = "no driver"

# Index and UUID of each MIG device of a GPU; None: MIG is disabled.
_Layout = tuple[tuple[int, str], ...] | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Cheap to read. If it differs, the GPUs must be enumerated again; `changes` describes why."""

    # PCI address -> kernel driver of each GPU; empty if sysfs lists none.
    functions: Mapping[str, str] = field(default_factory=dict)
    # By the UUID of the GPU.
    mig: Mapping[str, _Layout] = field(default_factory=dict)
    # GPUs and MIG devices (GPU index, MIG index) that were skipped and answer now.
    recovered: frozenset[tuple[int, int | None]] = frozenset()


def fingerprint(nvml: Nvml, inventory: Inventory, sysfs: Path = Path("/sys")) -> Fingerprint:
    mig = {gpu.uuid: _layout(nvml, gpu, _skipped_indices(inventory, gpu)) for gpu in inventory.gpus}
    silent = (skipped for skipped in inventory.skipped if skipped.silent)
    recovered = frozenset((one.index, one.mig_index) for one in silent if _answers(nvml, one))
    return Fingerprint(gpu_functions(sysfs), mig, recovered)


def of_inventory(inventory: Inventory, functions: Mapping[str, str]) -> Fingerprint:
    """The fingerprint as long as nothing has changed since the inventory was read.

    `functions` must be read before the inventory, so that changes in between are detected.
    """
    return Fingerprint(functions, {gpu.uuid: _layout_of(gpu) for gpu in inventory.gpus})


def changes(before: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    """The differences, for the log. Empty if there are none."""
    return (*_function_changes(before, now), *_mig_changes(before, now), *_recovered(before, now))


def _function_changes(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    for address in sorted(before.functions.keys() | now.functions.keys()):
        old, new = before.functions.get(address), now.functions.get(address)
        if old is None:
            yield f"the GPU at {address} was added"
        elif new is None:
            yield f"the GPU at {address} was removed"
        elif old != new:
            yield f"the GPU at {address} went from {old or _NO_DRIVER} to {new or _NO_DRIVER}"


def _mig_changes(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    for uuid in sorted(before.mig.keys() & now.mig.keys()):
        old, new = before.mig[uuid], now.mig[uuid]
        if (old is None) != (new is None):
            yield f"MIG of {uuid} was {'disabled' if new is None else 'enabled'}"
        elif old != new:
            yield f"the MIG devices of {uuid} changed"


def _recovered(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    for index, mig_index in sorted(now.recovered - before.recovered, key=str):
        device = f"GPU {index}" if mig_index is None else f"MIG device {index}:{mig_index}"
        yield f"{device} answers again"


def _layout(nvml: Nvml, gpu: Gpu, skipped: frozenset[int]) -> _Layout:
    try:
        return _layout_now(nvml.gpu(gpu.index), skipped)
    except NvmlError:
        # A lost GPU is a fault, not a change: a new enumeration would only drop it.
        return _layout_of(gpu)


def _layout_of(gpu: Gpu) -> _Layout:
    return tuple((mig.index, mig.uuid) for mig in gpu.mig) if gpu.mig_enabled else None


def _layout_now(gpu: GpuHandle, skipped: frozenset[int]) -> _Layout:
    if not gpu.mig_mode():
        return None
    found = (gpu.mig_device(i) for i in range(gpu.max_mig_devices()) if i not in skipped)
    return tuple((device.index, device.uuid()) for device in found if device is not None)


def _skipped_indices(inventory: Inventory, gpu: Gpu) -> frozenset[int]:
    return frozenset(
        one.mig_index
        for one in inventory.skipped
        if one.index == gpu.index and one.mig_index is not None
    )


def _answers(nvml: Nvml, skipped: Skipped) -> bool:
    try:
        if skipped.mig_index is None:
            return can_be_read(nvml, skipped.index)
        device = nvml.gpu(skipped.index).mig_device(skipped.mig_index)
        if device is not None:
            device.attributes()
    except NvmlError:
        return False
    return device is not None
