"""What a container with MPS replicas of a GPU receives beside the GPU itself."""

from __future__ import annotations

from gpuslice.inject.mps import LimitKey, client_env
from gpuslice.inject.visible import under
from gpuslice.kubelet.answer import ContainerAnswer, Mount
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.slicing.limits import Limits


def mps_pipe(resource: str) -> str:
    """Where the daemon of a resource listens, as containers name it."""
    return str(DaemonPaths(resource).pipe)


def mps_replica(
    resource: str, gpu: str, limits: Limits, mps_root: str, key: LimitKey
) -> ContainerAnswer:
    """Replicas of one GPU, given by UUID. `mps_root` is on the host."""
    mounts = (
        Mount(under(mps_root, f"{resource}/pipe"), mps_pipe(resource)),
        # Daemon and clients exchange data through shared memory, so they must share its directory.
        Mount(under(mps_root, "shm"), "/dev/shm"),  # noqa: S108
    )
    return ContainerAnswer(client_env(gpu, limits, mps_pipe(resource), key), mounts)
