"""Notices changes in a directory that others write to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from asyncinotify import Event, Inotify, Mask

from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A look without any event, for what inotify does not see: a mount over the directory or one of its
# files, the far end of a link.
_LOOK_ANYWAY_SECONDS = 5.0
_POLL_SECONDS = 0.5
# The link that the kubelet replaces when a mounted ConfigMap has changed.
_DATA_LINK = "..data"
_CHANGES = (
    Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.CLOSE_WRITE | Mask.MODIFY | Mask.ATTRIB
    | Mask.DELETE_SELF | Mask.MOVE_SELF
)  # fmt: skip
# The directory has another place or none at all, so its path needs another watch.
_GONE = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED


async def watch_directory(
    directory: Path,
    changed: Callable[[], None],
    only: str | None = None,
    *,
    look_anyway_seconds: float = _LOOK_ANYWAY_SECONDS,
) -> None:
    """Calls `changed` after every change in the directory, and now and then without one.

    `only` names the one file that matters: directories such as /etc are never at rest. A directory
    that cannot be watched is polled.
    """
    told = ""
    while True:
        try:
            with Inotify() as inotify:
                inotify.add_watch(directory, _CHANGES | Mask.ONLYDIR)
                told = ""
                changed()
                await _until_gone(inotify, directory, changed, only, look_anyway_seconds)
        except OSError as error:  # missing, or no inotify instance is left
            if str(error) != told:
                told = str(error)
                log.warning("polling a directory", directory=directory, reason=told)
        await asyncio.sleep(_POLL_SECONDS)
        changed()


async def _until_gone(
    inotify: Inotify,
    directory: Path,
    changed: Callable[[], None],
    only: str | None,
    look_anyway_seconds: float,
) -> None:
    clock = asyncio.get_running_loop().time
    look = clock() + look_anyway_seconds
    while directory.exists():
        try:
            # Not counted anew at every event: most may be about other files.
            async with asyncio.timeout_at(look):
                event = await inotify.get()
        except TimeoutError:
            changed()
            look = clock() + look_anyway_seconds
            continue
        if _concerns(event, only):
            changed()
        if event.mask & _GONE:
            return


def _concerns(event: Event, only: str | None) -> bool:
    """Without a name it is about the directory itself, or so much happened that names were lost."""
    return only is None or event.name is None or event.name.name in (only, _DATA_LINK)
