"""The size of a device list on the wire, counted instead of encoded."""

from __future__ import annotations

# What one gRPC message to the kubelet may hold; not configurable on its side.
MESSAGE_LIMIT_BYTES = 4 * 1024 * 1024


def device_bytes(id_length: int, numa_node: int | None = None) -> int:
    """One device at its worst, which is when it is unhealthy."""
    device = _field_bytes(id_length) + _field_bytes(len("Unhealthy")) + _topology_bytes(numa_node)
    return _field_bytes(device)


def numbered_bytes(prefix_length: int, count: int, numa_node: int | None = None) -> int:
    """The devices `<prefix>0` to `<prefix><count - 1>`, counted by their number of digits."""
    total, digits, first = 0, 1, 0
    while first < count:
        last = min(10**digits, count)
        total += (last - first) * device_bytes(prefix_length + digits, numa_node)
        first, digits = last, digits + 1
    return total


def _topology_bytes(numa_node: int | None) -> int:
    if numa_node is None:
        return 0
    # A zero is not written: it is what a missing number means.
    node = 1 + _varint_bytes(numa_node) if numa_node else 0
    return _field_bytes(_field_bytes(node))


def _field_bytes(length: int) -> int:
    """A field that says its length, after a tag of one byte."""
    return 1 + _varint_bytes(length) + length


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
