"""Second names of a daemon's sockets, outside of the directory that containers can write to.

A container that deletes or replaces a socket cuts off all containers that start later. A daemon
cannot bind its sockets again, and a restart would end its clients, so the second name is linked
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.files.untrusted import remove_tree
from gpuslice.mps.daemon_paths import CONTROL, PRIVILEGED_CONTROL, DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_NAMES = (CONTROL, PRIVILEGED_CONTROL)


class KeptSockets:
    def __init__(self, paths: DaemonPaths) -> None:
        self._paths = paths
        # The sockets of a daemon that is being started must not be replaced by old ones.
        self._lock = asyncio.Lock()

    async def forget(self) -> None:
        """Before a daemon starts."""
        async with self._lock:
            await asyncio.to_thread(self._forget)

    async def keep(self) -> None:
        """After a daemon started or was adopted."""
        async with self._lock:
            try:
                await asyncio.to_thread(self._keep)
            except OSError as error:
                log.warning(
                    Code.MPS_SOCKETS_NOT_KEPT,
                    "sockets of the MPS control daemon cannot be put back if a container deletes "
                    "them",
                    daemon=self._paths.name,
                    reason=error,
                )

    async def restore(self) -> list[str]:
        """Returns the names of sockets that were missing or replaced. Raises OSError."""
        async with self._lock:
            return await asyncio.to_thread(self._restore)

    def _kept(self, name: str) -> Path:
        return self._paths.directory / f".{name}"

    def _forget(self) -> None:
        for name in _NAMES:
            with contextlib.suppress(OSError):  # then there is nothing, or no directory
                self._kept(name).unlink()

    def _keep(self) -> None:
        """An adopted daemon may have lost its sockets already: what is kept is right."""
        for name in _NAMES:
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                self._kept(name).hardlink_to(self._paths.pipe / name)

    def _restore(self) -> list[str]:
        return [name for name in _NAMES if self._restore_one(name)]

    def _restore_one(self, name: str) -> bool:
        kept, path = self._kept(name), self._paths.pipe / name
        try:
            right = kept.lstat()
        except FileNotFoundError:
            return False
        try:
            found = path.lstat()
        except FileNotFoundError:
            found = None
        if found is not None:
            if (found.st_dev, found.st_ino) == (right.st_dev, right.st_ino):
                return False
            if stat.S_ISDIR(found.st_mode):
                remove_tree(path)
            else:
                path.unlink(missing_ok=True)
        path.hardlink_to(kept)
        return True
