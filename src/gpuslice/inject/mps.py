"""What limits the CUDA processes of a container under MPS."""

from __future__ import annotations

from enum import Enum

from gpuslice.inject.edits import ContainerEdits, Mount
from gpuslice.mps.daemon_paths import CONTROL, PRIVILEGED_CONTROL
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.driver_support import applies_uuid_keys
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
        "CUDA_MPS_PIPE_DIRECTORY": daemon.pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{device}={limits.memory_mib}M",
    }
    if limits.threads_percent is not None:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limits.threads_percent)
    mounts = [Mount(daemon.host_pipe, daemon.pipe, read_only=daemon.read_only)]
    if daemon.hides_privileged_socket:
        # Whichever socket root tries, it reaches the one for everybody.
        mounts.append(Mount(f"{daemon.host_pipe}/{CONTROL}", f"{daemon.pipe}/{PRIVILEGED_CONTROL}"))
    if daemon.host_shm is not None:
        # Daemon and clients exchange data through shared memory, so they must share its directory.
        mounts.append(Mount(daemon.host_shm, "/dev/shm"))  # noqa: S108
    return ContainerEdits(env, tuple(mounts))
