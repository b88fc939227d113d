"""Notices that configuration may have changed on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from watchfiles import Change, awatch

from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# What inotify does not show: a file mounted by itself, the far end of a link, another mount on top.
_LOOK_ANYWAY_MS = 5_000
_POLL_SECONDS = 2.0
# The link that the kubelet replaces when a ConfigMap has changed.
_DATA_LINK = "..data"


async def watch_config(
    directory: Path, stirred: Callable[[], None], only: str | None = None
) -> None:
    """Calls `stirred` after changes in the directory, and now and then without one.

    `only` names the one file that matters: directories such as /etc are never at rest.
    """
    told = ""
    while True:
        try:
            async for _ in awatch(
                directory,
                recursive=False,
                watch_filter=_only(only) if only else None,
                debounce=200,
                step=20,
                rust_timeout=_LOOK_ANYWAY_MS,
                yield_on_timeout=True,
            ):
                told = ""
                stirred()
                if not directory.exists():
                    break
        except (OSError, RuntimeError) as error:  # missing, or no inotify instance is left
            if str(error) != told:
                told = str(error)
                log.warning("polling the configuration", directory=directory, reason=told)
        await asyncio.sleep(_POLL_SECONDS)
        stirred()


def _only(name: str) -> Callable[[Change, str], bool]:
    return lambda _, path: Path(path).name in (name, _DATA_LINK)
