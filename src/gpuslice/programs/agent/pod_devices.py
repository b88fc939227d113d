"""Reads from the kubelet which pods hold which devices, with the UIDs of the pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from gpuslice.cgroup_limits.wanted import PodDevices, pods_of
from gpuslice.cluster.errors import ClusterError
from gpuslice.kubelet.checkpoint import read_checkpoint
from gpuslice.kubelet.pod_resources import PodResources, PodResourcesError, pod_resources_socket
from gpuslice.slicing.holders import Holder

# Namespace and name of a pod -> its UID. Raises ClusterError.
ReadUid = Callable[[str, str], Awaitable[str]]


class PodsUnknown(Exception):
    """The message says why."""


class PodDevicesReader:
    """The kubelet's checkpoint has UIDs. Its format may change, and then its list is used.

    The list has names, whose UIDs the API server knows.
    """

    def __init__(self, read_uid: ReadUid | None = None) -> None:
        """None: there is no API server."""
        self._read_uid = read_uid

    async def read(
        self, kubelet_socket: Path, resources: Collection[str]
    ) -> tuple[PodDevices, ...]:
        """The pods that hold devices of these resources. Raises PodsUnknown."""
        entries = await asyncio.to_thread(read_checkpoint, kubelet_socket)
        known = [(one.resource, one.holder) for one in entries if one.resource in resources]
        if known:
            return pods_of(known)
        try:
            listed = await PodResources(pod_resources_socket(kubelet_socket)).containers()
            held = [
                (resource, f"{one.namespace}/{one.pod}", one.container, ids)
                for one in listed
                for resource, ids in one.devices.items()
                if resource in resources
            ]
            uids = {pod: await self._uid(pod) for _, pod, _, _ in held}
        except (PodResourcesError, ClusterError) as error:
            raise PodsUnknown(str(error)) from error
        return pods_of(
            (resource, Holder(uids[pod], container, ids)) for resource, pod, container, ids in held
        )

    async def _uid(self, pod: str) -> str:
        if self._read_uid is None:
            raise PodsUnknown(
                "the kubelet's checkpoint has no devices of this node, and there is no API server "
                "to read the UIDs of pods from: set node-name, and allow to get pods"
            )
        namespace, _, name = pod.partition("/")
        return await self._read_uid(namespace, name)
