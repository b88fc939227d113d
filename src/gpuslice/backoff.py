"""How long to wait before the next attempt."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0


class Backoff:
    """Doubles the wait after every failure. Jitter keeps the nodes of a cluster apart."""

    def __init__(self, first_seconds: float = FIRST_SECONDS) -> None:
        self._first = first_seconds
        self._next = first_seconds
        self._random = random.SystemRandom()

    def seconds(self) -> float:
        wait, self._next = self._next, min(2 * self._next, _LONGEST_SECONDS)
        return wait * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next = self._first
