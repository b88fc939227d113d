"""What a container with MPS replicas of a GPU receives beside the GPU itself."""

from __future__ import annotations

from gpuslice.inject.mps import LimitKey
from gpuslice.inject.visible import under
from gpuslice.kubelet.answer import ContainerAnswer, Mount
from gpuslice.slicing.limits import Limits


def mps_pipe(resource: str) -> str:
    """Where the daemon of a resource listens, as containers name it. Its name has a slash."""
    return f"/mps/{resource}/pipe"


def mps_replica(
    resource: str, gpu: str, limits: Limits, mps_root: str, key: LimitKey
) -> ContainerAnswer:
    """Replicas of one GPU, given by UUID. `mps_root` is on the host."""
    device = gpu if key is LimitKey.UUID else "0"
    env = {
        # One daemon serves every GPU of the resource, and a client sees all that the daemon sees.
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_MPS_PIPE_DIRECTORY": mps_pipe(resource),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{device}={limits.memory_mib}M",
    }
    if limits.threads_percent is not None:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limits.threads_percent)
    mounts = (
        Mount(under(mps_root, f"{resource}/pipe"), mps_pipe(resource)),
        # Daemon and clients exchange data through shared memory, so they must share its directory.
        Mount(under(mps_root, "shm"), "/dev/shm"),  # noqa: S108
    )
    return ContainerAnswer(env, mounts)
