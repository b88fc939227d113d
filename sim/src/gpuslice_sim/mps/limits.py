"""Parses the values that MPS accepts. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)([KMG])B?")


class LimitError(ValueError):
    """MPS rejects the value."""


@dataclass(frozen=True)
class PinnedLimit:
    """A device memory limit. `text` is the output of the get commands."""

    text: str
    limit_bytes: int


def parse_percentage(text: str) -> float:
    """A share of the threads. In the environment, it can have decimals."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise LimitError(f"active thread percentage {text!r} is not a number from 1 to 100")
    return value


def parse_whole_percentage(text: str) -> float:
    """For commands. It is not known whether real daemons accept decimals, so this one does not."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100:
        raise LimitError(f"active thread percentage {text!r} is not a whole number from 1 to 100")
    return float(text)


def parse_memory(text: str, branch: int) -> PinnedLimit:
    """An integer with the binary unit G or M; K from driver branch 615 on."""
    match = _SIZE.fullmatch(text)
    allowed = "K, M or G" if branch >= 615 else "M or G"
    if match is None or (match[2] == "K" and branch < 615) or int(match[1]) == 0:
        raise LimitError(f"memory limit {text!r} is not a whole number followed by {allowed}")
    return PinnedLimit(text, int(match[1]) * _UNITS[match[2]])


def parse_pinned_list(text: str, branch: int) -> tuple[tuple[str, PinnedLimit], ...]:
    """Parses CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: `dev=limit[,dev=limit…]`."""
    entries = []
    for entry in text.split(","):
        device, equals, limit = entry.strip().partition("=")
        if not device or not equals:
            raise LimitError(f"pinned memory limit {entry!r} is not of the form device=limit")
        entries.append((device, parse_memory(limit, branch)))
    return tuple(entries)


def multiprocessors(percentage: float, sms: int, sms_per_tpc: int) -> int:
    """Rounds down to whole TPCs, and returns at least one TPC."""
    tpcs = int(sms * percentage / 100 + 1e-9) // sms_per_tpc
    return max(tpcs, 1) * sms_per_tpc


def tighter(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits. Both are optional."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
