"""Which devices a container gets: those of init containers first, then by the plugin's preference,
then by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet.endpoint import Endpoint
from gpuslice_sim.kubelet.pods import AdmissionError, Allocation


def held_by_init(resource: str, admitted: Sequence[Allocation]) -> set[str]:
    """Devices that init containers of the pod leave to its other containers."""
    held = {i for a in admitted if a.container.init and a.resource == resource for i in a.ids}
    taken = {i for a in admitted if not a.container.init for i in a.ids}
    return held - taken


def choose(
    endpoint: Endpoint, count: int, *, free: Sequence[str], reusable: set[str], rng: random.Random
) -> list[str]:
    chosen = sorted(reusable)
    rng.shuffle(chosen)
    chosen = chosen[:count]
    needed = count - len(chosen)
    if needed == 0:
        return chosen
    if len(free) < needed:
        raise AdmissionError(
            "Allocate failed due to requested number of devices unavailable for "
            f"{endpoint.resource}. "
            f"Requested: {needed}, Available: {len(free)}, which is unexpected"
        )
    if endpoint.options.get_preferred_allocation_available:
        preferred = _preferred(endpoint, [*free, *chosen], chosen, count)
        chosen += [i for i in preferred if i in set(free)][:needed]
    rest = [i for i in free if i not in set(chosen)]
    rng.shuffle(rest)
    return chosen + rest[: count - len(chosen)]


def _preferred(
    endpoint: Endpoint, available: list[str], must_include: list[str], size: int
) -> list[str]:
    request = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(
                available_deviceIDs=available,
                must_include_deviceIDs=must_include,
                allocation_size=size,
            )
        ]
    )
    reply = endpoint.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
    return list(reply.container_responses[0].deviceIDs) if reply.container_responses else []
