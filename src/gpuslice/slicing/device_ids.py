"""Device ids name their GPU, so that an allocation needs no other state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuslice.slicing.list_size import device_bytes, numbered_bytes

_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class DeviceIds:
    """`<stem>0`, `<stem>1`, … up to `count`, or the stem alone where `count` is None.

    A value instead of a list: with small memory units a node has tens of thousands of ids.
    """

    stem: str
    count: int | None = None

    def __len__(self) -> int:
        return 1 if self.count is None else self.count

    def __iter__(self) -> Iterator[str]:
        if self.count is None:
            return iter((self.stem,))
        return (f"{self.stem}{number}" for number in range(self.count))

    def list_bytes(self, numa_node: int | None) -> int:
        """The size of their part of the device list on the wire, at most."""
        if self.count is None:
            return device_bytes(len(self.stem), numa_node)
        return numbered_bytes(len(self.stem), self.count, numa_node)


def whole_id(uuid: str) -> DeviceIds:
    return DeviceIds(uuid)


def replica_ids(uuid: str, replicas: int) -> DeviceIds:
    """`<uuid>::<replica>`, as NVIDIA's device plugin names them."""
    return DeviceIds(f"{uuid}::", replicas)


def named_ids(uuid: str, name: str, count: int) -> DeviceIds:
    """`<uuid>::<name>-<number>`. Tools that know replicas find the GPU before the colons."""
    return DeviceIds(f"{uuid}::{name}-", count)


def unit_ids(uuid: str, units: int) -> DeviceIds:
    """`<uuid>-_-<unit>`, as gpushare names them."""
    return DeviceIds(f"{uuid}-_-", units)


def short_unit_ids(minor: int, units: int) -> DeviceIds:
    """`<minor number>-<unit>`, for lists that are too long otherwise.

    A list of long ids reaches the kubelet's message limit at about 67,000 devices, a list of short
    ones at about 200,000.
    """
    return DeviceIds(f"{minor}-", units)


def printable(device_id: str) -> str:
    """For a message. The id comes from outside, and a message must fit on one line."""
    cut = len(device_id) > _LONGEST_SHOWN
    return repr(f"{device_id[:_LONGEST_SHOWN]}…" if cut else device_id)[1:-1]
