"""Watches a directory that other processes write to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from asyncinotify import Event, Inotify, Mask

from gpuslice.codes import Code
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

# For changes that inotify does not report: a mount over the directory or one of its files, the
# target of a link.
_RESYNC_SECONDS = 5.0
_POLL_SECONDS = 0.5
# The link that the kubelet replaces when a mounted ConfigMap has changed.
_DATA_LINK = "..data"
_CHANGES = (
    Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.CLOSE_WRITE | Mask.MODIFY | Mask.ATTRIB
    | Mask.DELETE_SELF | Mask.MOVE_SELF
)  # fmt: skip
# The directory was moved or removed, so its path needs another watch.
_GONE = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED


async def watch_directory(
    directory: Path,
    changed: Callable[[], None],
    only: str | None = None,
    *,
    resync_seconds: float = _RESYNC_SECONDS,
) -> None:
    """Calls `changed` after every change in the directory, and periodically without one.

    `only` names the one file that matters: directories such as /etc change often. A directory that
    cannot be watched is polled.
    """
    conditions = Conditions(log)
    while True:
        try:
            with Inotify() as inotify:
                inotify.add_watch(directory, _CHANGES | Mask.ONLYDIR)
                conditions.clear("watch")
                changed()
                await _until_gone(inotify, directory, changed, only, resync_seconds)
        except OSError as error:  # missing, or no inotify instance is left
            conditions.set(
                "watch",
                Code.DIRECTORY_POLLED,
                "cannot watch directory, polling it",
                error,
                level=LogLevel.WARNING,
                directory=directory,
            )
        await asyncio.sleep(_POLL_SECONDS)
        changed()


async def _until_gone(
    inotify: Inotify,
    directory: Path,
    changed: Callable[[], None],
    only: str | None,
    resync_seconds: float,
) -> None:
    clock = asyncio.get_running_loop().time
    resync_at = clock() + resync_seconds
    while directory.exists():
        try:
            # Not restarted after each event: most may concern other files.
            async with asyncio.timeout_at(resync_at):
                event = await inotify.get()
        except TimeoutError:
            changed()
            resync_at = clock() + resync_seconds
            continue
        if _concerns(event, only):
            changed()
        if event.mask & _GONE:
            return


def _concerns(event: Event, only: str | None) -> bool:
    """An event without a name concerns the directory itself, or the event queue overflowed."""
    return only is None or event.name is None or event.name.name in (only, _DATA_LINK)
