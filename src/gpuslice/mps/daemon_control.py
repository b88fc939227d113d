"""The control of a daemon, with or without namespaces."""

from __future__ import annotations

from typing import Protocol

from gpuslice.mps.control import ControlClient
from gpuslice.mps.namespace_control import NamespaceControl


class DaemonControl(Protocol):
    """What daemons of both protocols can do. Its methods raise MpsUnavailable."""

    async def ping(self) -> None:
        """A round trip that proves that the daemon limits its clients."""

    async def default_threads_percent(self) -> float:
        """The share of threads of a client without limits of its own."""

    async def clients(self) -> int:
        """How many processes use the daemon."""

    async def quit(self, seconds: float) -> None:
        """Does nothing if no daemon answers."""


class Controls:
    """Of one pipe directory: the protocol of its daemon can change when it is restarted."""

    def __init__(self, pipe_directory: str, seconds: float) -> None:
        self.plain = ControlClient(pipe_directory, seconds)
        self.namespaces = NamespaceControl(pipe_directory, seconds)

    def of(self, *, namespaces: bool) -> DaemonControl:
        return self.namespaces if namespaces else self.plain
