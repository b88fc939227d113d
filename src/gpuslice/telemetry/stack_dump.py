"""Prints the stacks of all tasks and threads, for SIGQUIT."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from collections.abc import Iterator
from typing import TextIO


def dump_stacks(stream: TextIO = sys.stderr) -> None:
    """Must be called on the event loop's thread."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    print(f"== {len(tasks)} tasks", file=stream)
    for task in tasks:
        print(task.get_name(), file=stream)
        for line in _await_chain(task.get_coro()):
            print(f"  {line}", file=stream)
    print("== threads", file=stream, flush=True)
    faulthandler.dump_traceback(file=stream, all_threads=True)
    print("== end of stacks", file=stream, flush=True)


def _await_chain(awaited: object) -> Iterator[str]:
    """From the task's coroutine down to what it awaits; asyncio itself prints the first only."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        line = getattr(frame, "f_lineno", None)
        if frame is not None and line is not None:
            yield f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
        else:
            yield repr(awaited)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
