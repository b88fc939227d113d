"""Something that an operator should know although nothing failed."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.codes import Code


@dataclass(frozen=True, slots=True)
class Notice:
    code: Code
    message: str
