"""Variables that NVIDIA's container toolkit passes on to the driver as limits of a cgroup."""

from __future__ import annotations

from gpuslice.inject.edits import NOTHING, ContainerEdits
from gpuslice.slicing.grant import Grant
from gpuslice.slicing.tiers import driver_can_limit

_LIMIT, _REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"


def driver_limit(grant: Grant) -> ContainerEdits:
    """For drivers with limits of cgroups only: with others, the toolkit starts no such container.

    A hook of the toolkit (1.20.1 and newer, with CDI) sets the limits after the cgroup of the
    container exists and before its program runs. Older ones ignore the variables. Without a request
    of 0, it would reserve memory, and a pod could reserve that of others.
    """
    if len(grant.parts) != 1 or not driver_can_limit(grant.pool):
        return NOTHING
    [granted] = grant.parts
    return ContainerEdits({_LIMIT: str(granted.limits.memory_mib), _REQUEST: "0"})
