"""How closely the GPUs of a node are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Topology:
    """Scores of pairs of GPUs by UUID, the greater the closer; a pair that is missing scores 0.

    Keys hold the smaller UUID first.
    """

    scores: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def score(self, one: str, other: str) -> int:
        return self.scores.get((one, other) if one < other else (other, one), 0)
