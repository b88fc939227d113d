"""Writes labels to the API server: to a NodeFeature object, or to the Node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.errors import ClusterError
from gpuslice.labels.errors import PublishError
from gpuslice.labels.node_feature import Owner

if TYPE_CHECKING:
    from lightkube.generic_resource import GenericNamespacedResource

# Attempts to update an object while other clients update it, too.
_ATTEMPTS = 3


class ClusterLabels:
    """Implements `labels.publishers.NodeLabels`: every failure is a PublishError."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def apply_node_feature(self, body: Mapping[str, object]) -> bool:
        """Uses get, create and update, because the role of NVIDIA's chart does not allow patch."""
        metadata = _section(body, "metadata")
        operation = f"writing NodeFeature {metadata['namespace']}/{metadata['name']}"
        with self._errors(operation):
            for _ in range(_ATTEMPTS - 1):
                with contextlib.suppress(_Conflict):
                    return await self._put_node_feature(body)
            return await self._put_node_feature(body)

    async def read_node_labels(self, node: str) -> Mapping[str, str]:
        from lightkube.resources.core_v1 import Node

        with self._errors(f"reading the labels of node {node!r}"):
            found = await self._api.client.get(Node, node)
        return (found.metadata.labels if found.metadata else None) or {}

    async def patch_node_labels(self, node: str, changes: Mapping[str, str | None]) -> None:
        from lightkube.resources.core_v1 import Node
        from lightkube.types import PatchType

        if not changes:
            return
        patch = {"metadata": {"labels": dict(changes)}}
        with self._errors(f"labelling node {node!r}"):
            await self._api.client.patch(Node, node, patch, patch_type=PatchType.MERGE)

    async def read_pod_owners(self, namespace: str, pod: str) -> tuple[Owner, tuple[Owner, ...]]:
        from lightkube.resources.core_v1 import Pod

        with self._errors(f"reading pod {namespace}/{pod}"):
            found = await self._api.client.get(Pod, pod, namespace=namespace)
        metadata = found.metadata
        if metadata is None or not metadata.uid:
            raise PublishError(f"pod {namespace}/{pod} has no uid")
        owners = tuple(
            Owner(owner.apiVersion, owner.kind, owner.name, owner.uid)
            for owner in metadata.ownerReferences or ()
        )
        return Owner("v1", "Pod", pod, metadata.uid), owners

    async def _put_node_feature(self, body: Mapping[str, object]) -> bool:
        import httpx2

        metadata = _section(body, "metadata")
        feature = _node_feature()
        try:
            found = await self._found(str(metadata["name"]), str(metadata["namespace"]))
            if found is None:
                await self._api.client.create(feature.from_dict(dict(body)))
                return True
            if _holds(found, body):
                return False
            version = _section(found, "metadata")["resourceVersion"]
            updated = {**body, "metadata": {**metadata, "resourceVersion": version}}
            await self._api.client.replace(feature.from_dict(updated))
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            if status == HTTPStatus.CONFLICT:
                raise _Conflict(str(error), status) from error
            if status == HTTPStatus.NOT_FOUND:
                raise ClusterError(
                    f"namespace {metadata['namespace']!r} or the NodeFeature API does not exist; "
                    "install node-feature-discovery, or publish labels on the Node",
                    status,
                ) from error
            raise
        return True

    async def _found(self, name: str, namespace: str) -> GenericNamespacedResource | None:
        import httpx2

        try:
            return await self._api.client.get(_node_feature(), name, namespace=namespace)
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            return None

    @contextlib.contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        try:
            with self._api.errors(operation):
                yield
        except ClusterError as error:
            raise PublishError(str(error)) from error


class _Conflict(ClusterError):
    """Another client has changed the object."""


def _node_feature() -> type[GenericNamespacedResource]:
    from lightkube.generic_resource import create_namespaced_resource

    return create_namespaced_resource("nfd.k8s-sigs.io", "v1alpha1", "NodeFeature", "nodefeatures")


def _holds(found: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Whether the object has everything that is wanted, and no other label."""
    labels = _section(found, "spec").get("labels")
    return labels == _section(wanted, "spec").get("labels") and _contains(found, wanted)


def _contains(found: object, wanted: object) -> bool:
    """Other clients may add fields, and an empty section may be missing."""
    if isinstance(wanted, Mapping):
        present = found if isinstance(found, Mapping) else {}
        return all(_contains(present.get(key), value) for key, value in wanted.items())
    return found == wanted


def _section(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    section = body.get(key)
    return section if isinstance(section, Mapping) else {}
