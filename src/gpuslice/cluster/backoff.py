"""Exponential backoff between retries."""

from __future__ import annotations

import random

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0


class Backoff:
    """Doubles the wait after every failure. Jitter spreads the retries of many nodes."""

    def __init__(self) -> None:
        self._next = _FIRST_SECONDS
        self._random = random.SystemRandom()

    def seconds(self) -> float:
        wait, self._next = self._next, min(2 * self._next, _LONGEST_SECONDS)
        return wait * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next = _FIRST_SECONDS
