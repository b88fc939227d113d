"""The file that tells whether a daemon has namespaces. Containers cannot write to its directory."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemons import Daemon

_READY = "ready\n"


class NamespaceMarker:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, *, ready: bool) -> None:
        """First before a daemon with namespaces starts, and `ready` when its limits are set."""
        try:
            self._path.write_text(_READY if ready else "")
        except OSError as error:
            raise MpsUnavailable(
                f"{self._path} cannot be written ({error.strerror}): mount the host's MPS root, "
                "writable"
            ) from error

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    @property
    def exists(self) -> bool:
        return self._path.exists()

    @property
    def is_ready(self) -> bool:
        """Whether containers can get namespaces."""
        try:
            return self._path.read_text() == _READY
        except OSError:
            return False


def in_namespaces(daemon: Daemon) -> bool:
    """Whether the containers of this daemon are in namespaces."""
    return daemon.namespaces is not None and NamespaceMarker(daemon.namespaces).is_ready
