"""Which containers hold which devices, and which of them starts, as the kubelet knows it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.kubelet.checkpoint import CheckpointEntry, read_checkpoint
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.kubelet.pod_resources import (
    Holders,
    PodResources,
    PodResourcesError,
    SharedList,
    pod_resources_socket,
)
from gpuslice.node.state import NodeState
from gpuslice.slicing.holders import (
    Holder,
    Starting,
    holds,
    other_resources,
    pod_uid,
    starting_container,
)


class KubeletContainers:
    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._lists = SharedList()

    @property
    def socket(self) -> Path:
        """The kubelet's registration socket; without a name if there is no kubelet."""
        settings = self._state.current.settings
        return Path("" if settings is None else settings.kubelet_socket)

    async def listed(self) -> Holders:
        """Without init containers. Raises PodResourcesError."""
        return await self._lists.holders(PodResources(pod_resources_socket(self.socket)))

    async def checkpoint(self) -> tuple[CheckpointEntry, ...]:
        """Empty if it cannot be read."""
        return await asyncio.to_thread(read_checkpoint, self.socket)

    async def starting(self, resource: str, ids: Sequence[str]) -> Starting:
        """The container that starts with these devices. Raises Refused."""
        listed: tuple[Holder, ...] = ()
        reason = "neither its list of containers nor its checkpoint has these devices"
        try:
            listed = (await self.listed()).get(resource, ())
        except PodResourcesError as error:
            reason = str(error)
        starting = starting_container(ids, listed, lambda: ())
        if starting is None:
            recorded = await self._recorded(resource)
            starting = starting_container(ids, listed, lambda: recorded)
        if starting is None:
            raise _unknown(resource, reason)
        return starting

    async def uid(self, resource: str, ids: Sequence[str]) -> str | None:
        """Of the pod that holds these devices. None: unknown."""
        return pod_uid(ids, await self._recorded(resource))

    async def require_one_resource(
        self, resource: str, ids: Sequence[str], limited: Collection[str]
    ) -> None:
        """Raises Refused if the container that holds these devices holds other limited ones, too.

        A process has one set of limits. Each of the resources would set its own, and it would
        depend on their order which of them applies to the container.
        """
        sources = [_by_resource(await self.checkpoint())]
        reason = "neither its list of containers nor its checkpoint has these devices"
        try:
            sources.append(await self.listed())
        except PodResourcesError as error:
            reason = str(error)
        others = {
            other for source in sources for other in other_resources(resource, ids, source, limited)
        }
        if others:
            raise Refused(
                Code.MIXED_SHARES,
                f"{resource}: the container waits because it also requests "
                f"{', '.join(sorted(others))}, and its processes can have the limits of one share "
                "only: request one of these resources, or use a container for each",
            )
        if not any(holds(ids, source.get(resource, ())) for source in sources):
            raise _unknown(resource, reason)

    async def _recorded(self, resource: str) -> tuple[Holder, ...]:
        return tuple(one.holder for one in await self.checkpoint() if one.resource == resource)


def _unknown(resource: str, reason: str) -> Refused:
    return Refused(
        Code.POD_UNKNOWN,
        f"{resource}: the container waits because its limits cannot be set: the kubelet does not "
        f"tell which pod it belongs to ({reason})",
    )


def _by_resource(entries: Collection[CheckpointEntry]) -> Holders:
    found: defaultdict[str, list[Holder]] = defaultdict(list)
    for entry in entries:
        found[entry.resource].append(entry.holder)
    return {resource: tuple(some) for resource, some in found.items()}
