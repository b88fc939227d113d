"""Parses the values that MPS accepts. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuslice_sim.mps.scan import unsigned

if TYPE_CHECKING:
    from gpuslice_sim.mps.scan import Scanner

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)([KMG])B?")


class LimitError(ValueError):
    """MPS rejects the value."""


@dataclass(frozen=True)
class PinnedLimit:
    """A device memory limit."""

    limit_bytes: int

    @property
    def text(self) -> str:
        """The output of the get commands: whole GiB from 1 GiB on, rounded down."""
        mib = self.limit_bytes >> 20
        return f"{mib >> 10}G" if mib >= 1024 else f"{mib}M"


def scan_percentage(scanner: Scanner) -> float | None:
    """A share of the threads; None if it is not valid."""
    value = scanner.number()
    return value if value is not None and 0 < value <= 100 else None


def scan_memory(text: str, branch: int) -> PinnedLimit | None:
    """A limit in a command: MiB, unless G follows (K from driver branch 615 on). None for 0."""
    number, rest = unsigned(text)
    shift = {"g": 30, "k": 10 if branch >= 615 else 20}.get(rest[:1].lower(), 20)
    limit_bytes = (number << shift) % (1 << 64)
    return PinnedLimit(limit_bytes) if limit_bytes else None


def parse_memory(text: str, branch: int) -> PinnedLimit:
    """In the environment: an integer with the binary unit G or M; K from branch 615 on."""
    match = _SIZE.fullmatch(text)
    allowed = "K, M or G" if branch >= 615 else "M or G"
    if match is None or (match[2] == "K" and branch < 615) or int(match[1]) == 0:
        raise LimitError(f"memory limit {text!r} is not a whole number followed by {allowed}")
    return PinnedLimit(int(match[1]) * _UNITS[match[2]])


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
