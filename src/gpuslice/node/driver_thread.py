"""One thread for all work with the driver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class DriverThread:
    """Does one piece of work after the other, in a daemon thread.

    The process does not wait for it at exit, as it does for threads of an executor. Work that is
    cancelled before it begins is not done; other work is completed, and its result is dropped.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        future: Future[_T] = Future()
        self._work.put((future, work))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 (it belongs to the caller)
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, work
