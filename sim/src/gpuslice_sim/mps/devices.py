"""The GPUs of a server, and how programs name them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuslice_sim.mig import MigProfile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS = 0, 2, 3
_VOLTA = (7, 0)
_AMPERE = (8, 0)
_HOPPER = (9, 0)


@dataclass(frozen=True)
class Device:
    """A GPU, or the MIG device with the number `mig` on it.

    `index` is the number of the GPU in NVML order.
    """

    index: int
    minor: int
    uuid: str
    name: str
    capability: tuple[int, int]
    sms: int
    sms_per_tpc: int
    total_bytes: int
    reserved_bytes: int
    compute_mode: int
    mig: int | None = None

    @property
    def has_limits(self) -> bool:
        """GPUs before Volta have neither thread limits nor memory limits."""
        return self.capability >= _VOLTA

    @property
    def sms_per_chunk(self) -> int | None:
        """The unit of static partitions. None if the GPU does not support them."""
        if self.capability < _AMPERE:
            return None
        return 8 if self.capability >= _HOPPER else 4


def enumerate_devices(values: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that CUDA can find now, including MIG devices, without lost and absent GPUs."""
    count = int(values.get("gpu.count", "0"))
    found: list[Device] = []
    for index in range(count):
        if _usable(values, index):
            found += _devices_of(values, _gpu(values, index))
    return tuple(found)


def served_devices(values: Mapping[str, str], visible: str | None) -> tuple[Device, ...]:
    """The devices of a server with this CUDA_VISIBLE_DEVICES, in that order."""
    devices = enumerate_devices(values)
    if visible is not None:
        devices = select(devices, visible)
    devices = _one_mig(devices)
    if any(device.has_limits for device in devices):
        devices = tuple(device for device in devices if device.has_limits)
    return devices


def select(devices: Sequence[Device], visible: str) -> tuple[Device, ...]:
    """Applies CUDA_VISIBLE_DEVICES. The list ends before the first entry that matches no GPU."""
    chosen: list[Device] = []
    for key in visible.split(","):
        device = find(devices, key.strip())
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return tuple(chosen)


def find(devices: Sequence[Device], key: str) -> Device | None:
    """By ordinal, UUID or unique prefix of a UUID."""
    if key.isdigit():
        ordinal = int(key)
        return devices[ordinal] if ordinal < len(devices) else None
    matching = [device for device in devices if key and device.uuid.startswith(key)]
    return matching[0] if len(matching) == 1 else None


def is_lost(values: Mapping[str, str], device: Device) -> bool:
    return not _usable(values, device.index)


def _usable(values: Mapping[str, str], index: int) -> bool:
    present = values.get(f"gpu.{index}.present", "1")
    lost = values.get(f"gpu.{index}.lost", "0")
    return present != "0" and lost in ("", "0")


def _one_mig(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """A CUDA process uses either one MIG device or whole GPUs."""
    if devices and devices[0].mig is not None:
        return devices[:1]
    return tuple(device for device in devices if device.mig is None)


def _devices_of(values: Mapping[str, str], gpu: Device) -> list[Device]:
    prefix = f"gpu.{gpu.index}.mig"
    if values.get(f"{prefix}.mode", "0") != "1":
        return [gpu]
    count = int(values.get(f"{prefix}.count", "0"))
    return [_mig_device(values, prefix, gpu, number) for number in range(count)]


def _mig_device(values: Mapping[str, str], prefix: str, gpu: Device, number: int) -> Device:
    kind = int(values[f"{prefix}.{number}.profile"])
    profile = MigProfile.parse(kind, values[f"{prefix}.profile.{kind}"])
    return replace(
        gpu,
        uuid=values[f"{prefix}.{number}.uuid"],
        name=f"{gpu.name} MIG {profile.name}",
        sms=profile.sms,
        total_bytes=profile.memory_mib << 20,
        reserved_bytes=0,
        mig=number,
    )


def _gpu(values: Mapping[str, str], index: int) -> Device:
    def text(key: str, fallback: str) -> str:
        return values.get(f"gpu.{index}.{key}") or fallback

    major, _, minor = text("cc", "7.0").partition(".")
    return Device(
        index=index,
        minor=int(text("minor", str(index))),
        uuid=text("uuid", f"GPU-{index}"),
        name=text("name", "GPU"),
        capability=(int(major), int(minor or "0")),
        sms=int(text("sms", "1")),
        sms_per_tpc=int(text("sms_per_tpc", "1")),
        total_bytes=int(text("memory.total", "0")),
        reserved_bytes=int(text("memory.reserved", "0")),
        compute_mode=int(text("compute_mode", "0")),
    )
