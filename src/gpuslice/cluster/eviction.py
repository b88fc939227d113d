"""Evicts pods."""

from __future__ import annotations

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import PodReference


async def evict_pod(api: ApiServer, pod: PodReference) -> None:
    """Respects disruption budgets. Raises ClusterError.

    A pod with the same name and another uid stays.
    """
    from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions
    from lightkube.resources.core_v1 import Pod

    eviction = Pod.Eviction(
        metadata=ObjectMeta(name=pod.name, namespace=pod.namespace),
        deleteOptions=DeleteOptions(preconditions=Preconditions(uid=pod.uid)),
    )
    with api.errors(f"evicting pod {pod.namespace}/{pod.name}"):
        await api.client.create(eviction, pod.name, namespace=pod.namespace)
