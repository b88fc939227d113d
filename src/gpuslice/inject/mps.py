"""What binds a container's CUDA processes to its share under MPS."""

from __future__ import annotations

from enum import Enum

from gpuslice.kubelet.answer import ContainerAnswer, Mount
from gpuslice.mps.driver_support import applies_uuid_keys
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.limits import Limits


class LimitKey(Enum):
    """How a memory limit names its GPU.

    The UUID is right whatever the process sees. The ordinal counts what the process sees, which is
    one GPU; it is for drivers that do not apply UUID keys. Never both, never another GPU: one entry
    that the process cannot resolve makes MPS drop every memory limit it has.
    """

    UUID = "uuid"
    ORDINAL = "ordinal"

    @classmethod
    def for_driver(cls, version: str) -> LimitKey:
        return cls.UUID if applies_uuid_keys(version) else cls.ORDINAL


def mps_client(gpu: Gpu, limits: Limits, pipe_directory: str, key: LimitKey) -> ContainerAnswer:
    # Same path on both sides: client and daemon must name the directory alike.
    mount = Mount(host_path=pipe_directory, container_path=pipe_directory)
    return ContainerAnswer(client_env(gpu.uuid, limits, pipe_directory, key), (mount,))


def client_env(gpu: str, limits: Limits, pipe_directory: str, key: LimitKey) -> dict[str, str]:
    """Of a client with a share of one GPU, given by UUID. The directory as the client names it."""
    device = gpu if key is LimitKey.UUID else "0"
    env = {
        # Through MPS a process sees every GPU of the daemon, whatever its container was given.
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{device}={limits.memory_mib}M",
    }
    if limits.threads_percent is not None:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limits.threads_percent)
    return env
