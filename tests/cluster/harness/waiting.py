"""Waiting for what a cluster will do in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Costs nothing where all is well; a busy machine may need most of it.
PATIENCE_SECONDS = 240.0


def eventually(
    check: Callable[[], T | None],
    what: str,
    *,
    timeout: float = PATIENCE_SECONDS,
    every: float = 0.1,
    explain: Callable[[], str] = lambda: "",
) -> T:
    """The first true answer of `check`; TimeoutError with `what` and `explain()` without one."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := check():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s\n{explain()}".rstrip())
        time.sleep(every)
