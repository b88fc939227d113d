"""What every task and thread is doing right now, for SIGQUIT."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from typing import TextIO


def dump_stacks(stream: TextIO = sys.stderr) -> None:
    """Must be called on the event loop's thread."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    print(f"== {len(tasks)} tasks", file=stream)
    for task in tasks:
        task.print_stack(file=stream)
    print("== threads", file=stream, flush=True)
    faulthandler.dump_traceback(file=stream, all_threads=True)
    print("== end of stacks", file=stream, flush=True)
