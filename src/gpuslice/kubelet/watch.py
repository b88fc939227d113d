"""Notices changes in a directory that others write to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from watchfiles import Change, awatch

from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A look without any event, for what inotify does not see: a mount over the directory or one of its
# files, the far end of a link.
_LOOK_ANYWAY_MS = 5_000
_POLL_SECONDS = 0.5
# The link that the kubelet replaces when a mounted ConfigMap has changed.
_DATA_LINK = "..data"


async def watch_directory(
    directory: Path, changed: Callable[[], None], only: str | None = None
) -> None:
    """Calls `changed` after every change in the directory, and now and then without one.

    `only` names the one file that matters: directories such as /etc are never at rest. A directory
    that cannot be watched is polled.
    """
    told = ""
    while True:
        try:
            async for _ in awatch(
                directory,
                recursive=False,
                watch_filter=_only(only) if only else None,
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
                log.warning("polling a directory", directory=directory, reason=told)
        await asyncio.sleep(_POLL_SECONDS)
        changed()


def _only(name: str) -> Callable[[Change, str], bool]:
    return lambda _, path: Path(path).name in (name, _DATA_LINK)
