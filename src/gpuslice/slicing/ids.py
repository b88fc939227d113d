"""Device ids of memory units: each names its GPU, so that an allocation needs no other state.

The long form is gpushare's. The short form exists for small units: a list of long ids passes
the kubelet's message limit at about 67,000 devices, a list of short ones at about 200,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from gpuslice.slicing.gpu import Gpu

LONG_SEPARATOR = "-_-"
_LONGEST_SHOWN = 80


class IdStyle(Enum):
    LONG = "long"  # <uuid>-_-<unit>
    SHORT = "short"  # <minor number>-<unit>


def unit_ids(gpu: Gpu, units: int, style: IdStyle) -> Iterator[str]:
    prefix = f"{gpu.uuid}{LONG_SEPARATOR}" if style is IdStyle.LONG else f"{gpu.minor}-"
    return (f"{prefix}{unit}" for unit in range(units))


def split_unit_id(device_id: str) -> tuple[str, int] | None:
    """-> (UUID or minor number as text, unit), or None if this is no unit id."""
    separator = LONG_SEPARATOR if LONG_SEPARATOR in device_id else "-"
    owner, found, unit = device_id.rpartition(separator)
    if not found or not owner or not (unit.isascii() and unit.isdigit()):
        return None
    return owner, int(unit)


def printable(text: str) -> str:
    """An id for a message. It comes from outside, and an answer must fit into one line."""
    short = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return repr(short)[1:-1]
