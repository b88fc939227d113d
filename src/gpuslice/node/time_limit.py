"""Blocking work with a time limit, off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class TimeLimit:
    """Runs work in a thread of its own, and stops waiting for it after `seconds`.

    A thread cannot be stopped. While it still runs, further work times out at once, so that threads
    do not pile up. It does not delay the end of the process.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: Future[Any] | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Raises what the work raises, or TimeoutError."""
        if self._running is not None and not self._running.done():
            raise TimeoutError("an earlier attempt still runs")
        result: Future[_T] = Future()
        result.set_running_or_notify_cancel()  # from now on, a caller cannot cancel it
        self._running = result
        threading.Thread(target=_work, args=(work, result), daemon=True).start()
        waiting = asyncio.wrap_future(result)
        await asyncio.wait([waiting], timeout=self._seconds)
        if not waiting.done():
            waiting.cancel()
            raise TimeoutError(f"not finished after {self._seconds:g} s")
        self._running = None
        try:
            return waiting.result()
        finally:
            # An error refers to this frame. If the frame referred to the error, both would stay in
            # memory for a while, with all data of the work.
            del waiting, result


def _work(work: Callable[[], _T], result: Future[_T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # noqa: BLE001 (the caller gets it)
        result.set_exception(error)
    finally:
        del work, result  # as above
