"""The named server of a daemon with protocol 3, its namespaces and their sockets.

Real daemons have several servers. This one has at most one.
"""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuslice_sim.mps.limits import PinnedLimit

DEFAULT = "default"
_NAME = re.compile(r"[a-z0-9_]{1,64}")


@dataclass(frozen=True)
class NamespaceLimits:
    """None: not set, so that a client can use the whole GPU."""

    percentage: float | None = None
    pinned: PinnedLimit | None = None
    priority: int | None = None


@dataclass
class NamedServer:
    name: str
    allowed: str
    namespaces: dict[str, NamespaceLimits] = field(default_factory=dict)


def is_valid(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class NamespaceSockets:
    """`<pipe>/<server>/<namespace>/control`, and `<pipe>/<server>/control` for the default one."""

    def __init__(
        self,
        pipe: Path,
        watch: Callable[[socket.socket], None],
        unwatch: Callable[[socket.socket], None],
    ) -> None:
        self._pipe = pipe
        self._watch = watch
        self._unwatch = unwatch
        self._listeners: dict[socket.socket, tuple[Path, str]] = {}

    def directory(self, server: str, namespace: str = "") -> Path:
        return self._pipe / server / namespace if namespace else self._pipe / server

    def open(self, server: str, namespace: str) -> None:
        """A killed daemon leaves its directories behind. Containers may have mounted them."""
        directories = [self.directory(server, namespace)]
        if namespace == DEFAULT:
            directories.insert(0, self.directory(server))
        for directory in directories:
            directory.mkdir(mode=0o755, exist_ok=True)
            path = directory / "control"
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen(128)
            listener.setblocking(False)
            self._listeners[listener] = path, namespace
            self._watch(listener)

    def close(self, namespace: str | None = None) -> None:
        """Of one namespace, or all."""
        for listener, (path, name) in list(self._listeners.items()):
            if namespace in (None, name):
                self._unwatch(listener)
                listener.close()
                del self._listeners[listener]
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # the directory of the server has others
                    path.parent.rmdir()

    def namespace_of(self, listener: socket.socket) -> str | None:
        """None: it is not the socket of a namespace."""
        found = self._listeners.get(listener)
        return None if found is None else found[1]
