"""What limits the CUDA processes of a container under MPS."""

from __future__ import annotations

from enum import Enum

from gpuslice.inject.edits import ContainerEdits, Mount
from gpuslice.mps.daemon_paths import CONTROL, PRIVILEGED_CONTROL
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.driver_support import applies_uuid_keys
from gpuslice.mps.namespaces import (
    MEMORY_VARIABLE,
    PIPE_VARIABLE,
    THREADS_VARIABLE,
    namespace_directory,
)
from gpuslice.slicing.limits import Limits


class LimitKey(Enum):
    """How a memory limit names its GPU.

    The UUID is right whatever the process sees. The ordinal counts the GPUs that the process sees,
    which is one; it is for drivers that do not apply UUID keys. Never both, never another GPU: if
    MPS cannot resolve one entry, it drops every memory limit of the process.
    """

    UUID = "uuid"
    ORDINAL = "ordinal"

    @classmethod
    def for_driver(cls, version: str) -> LimitKey:
        return cls.UUID if applies_uuid_keys(version) else cls.ORDINAL


def mps_client(gpu: str, limits: Limits, daemon: Daemon, key: LimitKey) -> ContainerEdits:
    """A client of the daemon with a share of one GPU, given by UUID."""
    device = gpu if key is LimitKey.UUID else "0"
    env = {
        # Through MPS, a process sees every GPU of the daemon, not just those of its container.
        "CUDA_VISIBLE_DEVICES": gpu,
        PIPE_VARIABLE: _directory(daemon.pipe, daemon),
        # Also in a namespace: from these, it is made again.
        MEMORY_VARIABLE: f"{device}={limits.memory_mib}M",
    }
    if limits.threads_percent is not None:
        env[THREADS_VARIABLE] = str(limits.threads_percent)
    host = _directory(daemon.host_pipe, daemon)
    mounts = [Mount(host, env[PIPE_VARIABLE], read_only=daemon.read_only)]
    if daemon.hides_privileged_socket and daemon.namespace is None:
        # Whichever socket root tries, it reaches the one for everybody.
        mounts.append(Mount(f"{daemon.host_pipe}/{CONTROL}", f"{daemon.pipe}/{PRIVILEGED_CONTROL}"))
    if daemon.host_shm is not None:
        # Daemon and clients exchange data through shared memory, so they must share its directory.
        mounts.append(Mount(daemon.host_shm, "/dev/shm"))  # noqa: S108
    return ContainerEdits(env, tuple(mounts))


def _directory(pipe: str, daemon: Daemon) -> str:
    """A container in a namespace has nothing else of the pipe directory, so it has no other."""
    return pipe if daemon.namespace is None else namespace_directory(pipe, daemon.namespace)
