"""Memory units, and how memory sizes are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuslice.codes import Code
from gpuslice.slicing.errors import SlicingError

_MIB_PER = {"MiB": 1, "Mi": 1, "GiB": 1024, "Gi": 1024}
_SIZE = re.compile(r"(?P<count>[0-9]{0,9})\s*(?P<unit>MiB|Mi|GiB|Gi)")


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """The amount that a request of 1 stands for."""

    mib: int

    @classmethod
    def parse(cls, text: str) -> MemoryUnit:
        """Parses `GiB`, `MiB`, `256MiB`, `2Gi`. A unit without a number means one of it."""
        mib = parse_mib(text)
        if mib < 1:
            raise SlicingError(Code.INVALID_SIZE, "a unit has at least 1 MiB")
        return cls(mib)

    def units_in(self, memory_mib: int) -> int:
        """Whole units only: the rest is not advertised."""
        return max(memory_mib, 0) // self.mib

    def describe(self, units: int) -> str:
        """This many units in words: `6 GiB`, `1536 MiB`."""
        return describe_mib(units * self.mib)

    def __str__(self) -> str:
        if self.mib == 1:
            return "MiB"
        if self.mib == 1024:
            return "GiB"
        return describe_mib(self.mib).replace(" ", "")


GIB = MemoryUnit(1024)


def parse_mib(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SlicingError(
            Code.INVALID_SIZE,
            "use a whole number and MiB or GiB, for example 256MiB or 2GiB",
        )
    count = int(match["count"]) if match["count"] else 1
    return count * _MIB_PER[match["unit"]]


def describe_mib(mib: int) -> str:
    return f"{mib // 1024} GiB" if mib >= 1024 and mib % 1024 == 0 else f"{mib} MiB"
