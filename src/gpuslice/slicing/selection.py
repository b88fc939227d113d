"""Which of a node's devices a configuration selects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.slicing.device import Device
from gpuslice.slicing.rules import Selection

# The name of a MIG device on drivers where it has no UUID of its own.
_BY_INSTANCES = re.compile(r"MIG-(?P<gpu>GPU-[^/]+)/(?P<gi>[0-9]+)/(?P<ci>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Selected:
    devices: tuple[Device, ...]
    # References that match no device.
    unmatched: tuple[str, ...] = ()
    # How many devices are missing to the configured number.
    short_by: int = 0


def select(selection: Selection, devices: Sequence[Device]) -> Selected:
    """The selected devices in order of their index. A shortfall is returned, not raised."""
    ordered = sorted(devices, key=by_index)
    if selection.references:
        found = [(r, [d for d in ordered if refers_to(r, d)]) for r in selection.references]
        wanted = {device.uuid for _, matches in found for device in matches}
        return Selected(
            tuple(device for device in ordered if device.uuid in wanted),
            unmatched=tuple(reference for reference, matches in found if not matches),
        )
    if selection.count is not None:
        count = max(0, selection.count)
        return Selected(tuple(ordered[:count]), short_by=max(0, count - len(ordered)))
    return Selected(tuple(ordered))


def refers_to(reference: str, device: Device) -> bool:
    if reference in (device.uuid, device.index):
        return True
    instances = _BY_INSTANCES.fullmatch(reference)
    return (
        instances is not None
        and device.mig is not None
        and instances["gpu"] == device.gpu
        and int(instances["gi"]) == device.mig.gpu_instance
        and int(instances["ci"]) == device.mig.compute_instance
    )


def by_index(device: Device) -> tuple[list[int], str]:
    """A sort key: 0, 1:0, 1:1, 2, 10. Devices without a number come last."""
    numbers = device.index.split(":")
    counted = all(number.isascii() and number.isdigit() for number in numbers)
    return ([int(number) for number in numbers] if counted else [1 << 32]), device.uuid


def listed(devices: Sequence[Device]) -> str:
    """Devices for a message: `0 (GPU-…), 1:0 (MIG-…)`."""
    return ", ".join(f"{device.index} ({device.uuid})" for device in devices) or "none"
