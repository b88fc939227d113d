"""Static SM partitions of a daemon that was started with -S."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice_sim.mps.devices import Device


class PartitionError(ValueError):
    """A partition cannot be created or removed."""


@dataclass(frozen=True)
class Partition:
    """A fixed set of multiprocessors of one GPU."""

    device: Device
    identifier: str
    chunks: int

    @property
    def name(self) -> str:
        """The value of CUDA_MPS_SM_PARTITION for a client."""
        return f"{self.device.uuid}/{self.identifier}"

    @property
    def sms(self) -> int:
        return self.chunks * (self.device.sms_per_chunk or 0)


class Partitions:
    """All partitions of one daemon, in order of their creation."""

    def __init__(self) -> None:
        self._made: list[Partition] = []
        self._next = 1

    def add(self, device: Device, chunks: int) -> Partition:
        per_chunk = device.sms_per_chunk
        if per_chunk is None:
            raise PartitionError(f"{device.uuid} ({device.name}) has no static partitions: "
                                 "they require an Ampere or newer GPU")  # fmt: skip
        free = self.free_chunks(device)
        if not 1 <= chunks <= free:
            raise PartitionError(f"{chunks} chunks do not fit {device.uuid}: {free} are free")
        partition = Partition(device, f"{self._next:02x}{device.index:02x}", chunks)
        self._next += 1
        self._made.append(partition)
        return partition

    def remove(self, partition: Partition) -> None:
        self._made.remove(partition)

    def find(self, name: str) -> Partition | None:
        return next((made for made in self._made if made.name == name), None)

    def of(self, device: Device) -> Sequence[Partition]:
        return [made for made in self._made if made.device.uuid == device.uuid]

    def free_chunks(self, device: Device) -> int:
        all_chunks = device.sms // device.sms_per_chunk if device.sms_per_chunk else 0
        return all_chunks - sum(made.chunks for made in self.of(device))
