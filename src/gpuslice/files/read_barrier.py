"""Replaces a file that another process watches, and waits until that process has read it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asyncinotify import Inotify, Mask

from gpuslice.files.atomic import draft_of, write_draft
from gpuslice.files.off_loop import run_to_end


async def replace_and_await_reader(path: Path, content: bytes, seconds: float) -> bool:
    """Returns whether some process has read the file within this time. Raises OSError.

    A process that watches the directory reads the file a moment after it has its name. The watch is
    on the file itself, so reads of other files do not count.
    """
    inotify = Inotify()

    def write() -> None:
        with draft_of(path) as draft:
            write_draft(draft, content)
            inotify.add_watch(draft, Mask.CLOSE_NOWRITE)

    try:
        await run_to_end(write)
        return await _is_read(inotify, seconds)
    finally:
        # The kernel takes 10 ms and more to close it. Neither this caller nor others wait for that.
        asyncio.get_running_loop().run_in_executor(None, inotify.close)


async def _is_read(inotify: Inotify, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await inotify.get()
    except TimeoutError:
        return False
    return True
