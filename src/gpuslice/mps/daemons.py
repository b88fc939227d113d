"""The MPS control daemons that limit the containers of a node, and how they are reached."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuslice.config.settings import MpsCheck, MpsNamespaces, Settings
from gpuslice.mps.daemon_paths import SHM, DaemonPaths
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import SharingStrategy


@dataclass(frozen=True, slots=True)
class Daemon:
    """A control daemon, and the paths under which the agent and containers reach it."""

    # Parts of pools refer to it by this name.
    name: str
    # The pipe directory in the agent and in containers.
    pipe: str
    # The same directory on the host.
    host_pipe: str
    # The directory on the host that this daemon and its clients use as /dev/shm; None: containers
    # have their own.
    host_shm: str | None = None
    check: MpsCheck = MpsCheck.REQUIRE
    # Containers get the socket for everybody in place of the privileged one. It must exist before
    # they start: otherwise the container runtime creates a directory of that name.
    hides_privileged_socket: bool = False
    # Containers get the pipe directory read-only.
    read_only: bool = False
    # Exists while the daemon waits for its clients before it stops; None: that is not known.
    draining: Path | None = None
    # Exists while the daemon has namespaces; None: it never has.
    namespaces: Path | None = None
    # Whether containers can get namespaces, and whether they must.
    namespace_use: MpsNamespaces = MpsNamespaces.OFF
    # The namespace of one container; None: it is not in one.
    namespace: str | None = None


def daemons_of(pools: Iterable[Pool], settings: Settings) -> dict[str, Daemon]:
    """By name."""
    return {name: _daemon(name, pool, settings) for pool in pools for name in sorted(pool.daemons)}


def _daemon(name: str, pool: Pool, settings: Settings) -> Daemon:
    containers = settings.containers
    if pool.sharing is SharingStrategy.MEMORY and not pool.daemon_per_gpu:
        pipe = settings.memory_mps.pipe
        assert pipe is not None  # memory is limited only if it is set
        # The same path on the host and in containers, because MPS requires it.
        return Daemon(
            name,
            pipe,
            pipe,
            settings.memory_mps.shm,
            check=settings.memory_mps.check,
            hides_privileged_socket=(
                containers.mps_hide_privileged_socket
                and settings.memory_mps.check is not MpsCheck.OFF
            ),
            read_only=containers.mps_pipe_read_only,
        )
    root = containers.mps_root
    assert root is not None  # checked with the settings
    return Daemon(
        name,
        str(DaemonPaths(name).pipe),
        posixpath.join(root, name, "pipe"),
        posixpath.join(root, name, SHM),
        hides_privileged_socket=containers.mps_hide_privileged_socket,
        read_only=containers.mps_pipe_read_only,
        draining=DaemonPaths(name).draining,
        namespaces=DaemonPaths(name).namespaces if pool.daemon_per_gpu else None,
        namespace_use=settings.mps_namespaces if pool.daemon_per_gpu else MpsNamespaces.OFF,
    )
