"""What the driver may report about a GPU. The rest is a fault of that GPU, and of no other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuslice.slicing.gpu import Gpu, MigDevice

_HEX = r"[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_GPU_UUID = re.compile(rf"GPU-{_UUID}")
# The second form is that of drivers before 470.
_MIG_UUID = re.compile(rf"MIG-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")
_BUS_ID = re.compile(rf"{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}\.{_HEX}")
# Far more than any GPU has.
_MOST_MEMORY_MIB = 4 * 1024 * 1024
_MOST_SLICES = 64
_MOST_INSTANCES = 1024
# 254 and 255 are the control devices of the driver.
_HIGHEST_MINOR = 253
_HIGHEST_VERSION = 99

_C = TypeVar("_C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """What the kernel module reports about the GPU at a PCI address."""

    uuid: str
    minor: int


def gpu_problem(gpu: Gpu) -> str | None:
    """What cannot be true about a GPU on its own. 0 MiB: it has no memory of its own."""
    if not _GPU_UUID.fullmatch(gpu.uuid):
        return f"its UUID is {_quoted(gpu.uuid)}"
    if not gpu.name.isprintable():
        return f"its name is {_quoted(gpu.name)}"
    if not 0 <= gpu.memory_mib <= _MOST_MEMORY_MIB:
        return f"its memory is {gpu.memory_mib} MiB"
    if not 0 <= gpu.minor <= _HIGHEST_MINOR:
        return f"its minor number is {gpu.minor}"
    if not _BUS_ID.fullmatch(gpu.pci_bus_id):
        return f"its PCI address is {_quoted(gpu.pci_bus_id)}"
    if not all(0 <= number <= _HIGHEST_VERSION for number in gpu.compute_capability):
        return f"its compute capability is {'.'.join(map(str, gpu.compute_capability))}"
    return None


def mig_problem(mig: MigDevice, gpu_memory_mib: int) -> str | None:
    """What cannot be true about a MIG device on its own."""
    if not _MIG_UUID.fullmatch(mig.uuid):
        return f"its UUID is {_quoted(mig.uuid)}"
    if not 0 < mig.memory_mib <= gpu_memory_mib:
        return f"its memory is {mig.memory_mib} MiB, and its GPU has {gpu_memory_mib} MiB"
    if not all(0 < number <= _MOST_SLICES for number in mig.slices):
        return f"its slices are {mig.slices}"
    if not all(0 <= n < _MOST_INSTANCES for n in (mig.gpu_instance, mig.compute_instance)):
        return f"its instances are {mig.gpu_instance} and {mig.compute_instance}"
    return None


def duplicates(gpus: Sequence[Gpu], kernel: Mapping[str, KernelGpu]) -> dict[int, str]:
    """Index -> why, of GPUs that claim the UUID or the device node of another one.

    The kernel shows whose it is. Without that, all GPUs that claim it are listed: a container would
    get one of them, and nothing shows which.
    """
    owned = {gpu.index: kernel.get(gpu.pci_bus_id) for gpu in gpus}
    minors = _wrong(
        {gpu.index: gpu.minor for gpu in gpus},
        {index: known.minor for index, known in owned.items() if known is not None},
    )
    uuids = _wrong(
        {gpu.index: gpu.uuid for gpu in gpus},
        {index: known.uuid for index, known in owned.items() if known is not None},
    )
    return {
        **{i: f"another GPU has the minor number {minor} as well" for i, minor in minors.items()},
        **{i: f"another GPU has the UUID {uuid} as well" for i, uuid in uuids.items()},
    }


def duplicate_mig_uuids(gpus: Iterable[Gpu]) -> frozenset[str]:
    counts = Counter(mig.uuid for gpu in gpus for mig in gpu.mig)
    return frozenset(uuid for uuid, count in counts.items() if count > 1)


def parse_information(text: str) -> KernelGpu | None:
    """Of /proc/driver/nvidia/gpus/ADDRESS/information; None if it is not complete."""
    rows = dict(_rows(text))
    minor = rows.get("Device Minor", "")
    uuid = rows.get("GPU UUID", "")
    return KernelGpu(uuid, int(minor)) if uuid and minor.isdecimal() else None


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _wrong(claims: Mapping[int, _C], owned: Mapping[int, _C]) -> dict[int, _C]:
    """Claims that several GPUs make, without that of the owner if exactly one of them is it."""
    found: dict[int, _C] = {}
    for claim, count in Counter(claims.values()).items():
        if count > 1:
            rivals = [index for index, one in claims.items() if one == claim]
            owners = [index for index in rivals if owned.get(index) == claim]
            kept = owners if len(owners) == 1 else []
            found |= {index: claim for index in rivals if index not in kept}
    return found


def _quoted(text: str) -> str:
    """In ASCII and of limited length, because it comes from a driver that is wrong."""
    return ascii(text[:96])
