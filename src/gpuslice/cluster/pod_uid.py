"""Reads the UID of a pod."""

from __future__ import annotations

from gpuslice.cluster.client import ApiServer


async def pod_uid(api: ApiServer, namespace: str, name: str) -> str:
    """Raises ClusterError."""
    from lightkube.resources.core_v1 import Pod

    with api.errors(f"reading pod {namespace}/{name}"):
        pod = await api.client.get(Pod, name, namespace=namespace)
        return (pod.metadata and pod.metadata.uid) or ""
