"""Reads pods."""

from __future__ import annotations

from collections.abc import Mapping

from gpuslice.cluster.client import ApiServer


async def pod_annotations(api: ApiServer, namespace: str, name: str) -> Mapping[str, str]:
    """Raises ClusterError."""
    from lightkube.resources.core_v1 import Pod

    with api.errors(f"reading pod {namespace}/{name}"):
        pod = await api.client.get(Pod, name, namespace=namespace)
        return dict((pod.metadata and pod.metadata.annotations) or {})
