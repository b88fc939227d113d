"""Work on files outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def run_to_end(work: Callable[[], _T]) -> _T:
    """Runs blocking work in a thread. If cancelled, it waits for the work first.

    A file that is written must not appear after the code that cleans up has run.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
