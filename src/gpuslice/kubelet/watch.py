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
_RETRY_SECONDS = 1.0


async def watch_directory(directory: Path, changed: Callable[[], None]) -> None:
    """Calls `changed` after every change in the directory, also while it is missing at first."""
    missing = False
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
                changed()
                if not directory.exists():
                    break
        except FileNotFoundError:
            pass
        if not missing:
            missing = True
            log.warning("the kubelet's plugin directory is missing, waiting", directory=directory)
        await asyncio.sleep(_RETRY_SECONDS)
        if directory.exists():
            missing = False
            changed()
