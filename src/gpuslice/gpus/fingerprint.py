"""Notices that the node's GPUs are no longer those of the inventory, without a new enumeration.

NVML enumerates at initialisation only, so hot-plug is seen in sysfs. MIG is seen by the open NVML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.gpus.inventory import Inventory, Skipped
from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError
from gpuslice.gpus.pci import gpu_functions
from gpuslice.slicing.gpu import Gpu

_NO_DRIVER = "no driver"

# Places on a GPU and the UUIDs of the MIG devices there; None: MIG is off.
_Layout = tuple[tuple[int, str], ...] | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Cheap to take; unequal ones call for a new enumeration, and `changes` tells why."""

    # Addresses of GPUs and the kernel driver of each; empty where sysfs shows none.
    functions: Mapping[str, str] = field(default_factory=dict)
    # By the UUID of the GPU.
    mig: Mapping[str, _Layout] = field(default_factory=dict)
    # What was left out for its silence and answers now.
    awake: frozenset[tuple[int, int | None]] = frozenset()


def fingerprint(nvml: Nvml, inventory: Inventory, sysfs: Path = Path("/sys")) -> Fingerprint:
    mig = {gpu.uuid: _layout(nvml, gpu, _places_skipped(inventory, gpu)) for gpu in inventory.gpus}
    silent = (skipped for skipped in inventory.skipped if skipped.silent)
    awake = frozenset((left.index, left.mig_index) for left in silent if _answers(nvml, left))
    return Fingerprint(gpu_functions(sysfs), mig, awake)


def of_inventory(inventory: Inventory, functions: Mapping[str, str]) -> Fingerprint:
    """What a fingerprint should be while nothing has changed since the inventory was read.

    `functions` were looked up before it was: what came in between is a change.
    """
    return Fingerprint(functions, {gpu.uuid: _layout_of(gpu) for gpu in inventory.gpus})


def changes(before: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    """What happened in between, in words for the log; empty if nothing did."""
    return (*_function_changes(before, now), *_mig_changes(before, now), *_awakened(before, now))


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
            yield f"MIG of {uuid} was switched {'off' if new is None else 'on'}"
        elif old != new:
            yield f"the MIG devices of {uuid} changed"


def _awakened(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    for index, mig_index in sorted(now.awake - before.awake, key=str):
        place = "" if mig_index is None else f":{mig_index}"
        yield f"GPU {index}{place} answers again"


def _layout(nvml: Nvml, gpu: Gpu, skipped: frozenset[int]) -> _Layout:
    try:
        return _layout_now(nvml.gpu(gpu.index), skipped)
    except NvmlError:
        # Its loss is a matter of health: a new enumeration would only make it vanish.
        return _layout_of(gpu)


def _layout_of(gpu: Gpu) -> _Layout:
    return tuple((mig.index, mig.uuid) for mig in gpu.mig) if gpu.mig_enabled else None


def _layout_now(gpu: GpuHandle, skipped: frozenset[int]) -> _Layout:
    if not gpu.mig_mode():
        return None
    places = (place for place in range(gpu.mig_places()) if place not in skipped)
    found = (gpu.mig_device(place) for place in places)
    return tuple((device.index, device.uuid()) for device in found if device is not None)


def _places_skipped(inventory: Inventory, gpu: Gpu) -> frozenset[int]:
    return frozenset(
        left.mig_index
        for left in inventory.skipped
        if left.index == gpu.index and left.mig_index is not None
    )


def _answers(nvml: Nvml, skipped: Skipped) -> bool:
    try:
        gpu = nvml.gpu(skipped.index)
        gpu.probe()
        if skipped.mig_index is None:
            return True
        device = gpu.mig_device(skipped.mig_index)
        if device is not None:
            device.attributes()
    except NvmlError:
        return False
    return device is not None
