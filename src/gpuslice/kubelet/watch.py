"""Notices changes in the kubelet's plugin directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from watchfiles import awatch

from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A look without any event, for what inotify does not see: a directory mounted over this one.
_LOOK_ANYWAY_MS = 5_000
_POLL_SECONDS = 0.5


async def watch_directory(directory: Path, changed: Callable[[], None]) -> None:
    """Calls `changed` after every change in the directory; polls where it cannot be watched."""
    told = ""
    while True:
        try:
            async for _ in awatch(
                directory,
                recursive=False,
                watch_filter=None,
                debounce=100,
                step=10,
                rust_timeout=_LOOK_ANYWAY_MS,
                yield_on_timeout=True,
            ):
                told = ""
                changed()
                if not directory.exists():
                    break
        except (OSError, RuntimeError) as error:  # missing, or no inotify instance is left
            if str(error) != told:
                told = str(error)
                log.warning("polling the kubelet's directory", directory=directory, reason=told)
        await asyncio.sleep(_POLL_SECONDS)
        changed()
