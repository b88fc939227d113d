"""Follows the agent's own Node."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterable
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from gpuslice.cluster.backoff import Backoff
from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.errors import ClusterError
from gpuslice.telemetry.logs import Logger

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Node

log = Logger(__name__)

# How long the server keeps a watch open: long, and not the same for all nodes of a cluster.
_WATCH_SECONDS = (240, 360)
# A watch that outlives this was forgotten by the server.
_GRACE_SECONDS = 30
_NOTHING = object()


async def watch_label(
    api: ApiServer, node_name: str, label: str
) -> AsyncGenerator[str | None, None]:
    """Yields the label's value (None: the Node has none), then every new one.

    Never ends and never fails: while the API server is away, the last value holds.
    """
    seen: object = _NOTHING
    outage = _Outage(api.url)
    backoff = Backoff()
    while True:
        try:
            async with contextlib.aclosing(_follow(api, node_name)) as nodes:
                async for node in nodes:
                    outage.over()
                    backoff.reset()
                    value = _value(node, label)
                    if node is None and seen is not _NOTHING:
                        continue  # a Node that was deleted has moved nowhere
                    if node is None:
                        log.warning("the API server does not know this node", node=node_name)
                    if value != seen:
                        seen = value
                        yield value
            continue
        except ClusterError as error:
            if error.status == HTTPStatus.GONE:
                continue
            outage.begin(error)
        await asyncio.sleep(backoff.seconds())


async def _follow(api: ApiServer, name: str) -> AsyncGenerator[Node | None, None]:
    """The Node as it is now (None: there is none) and as it becomes, for some minutes."""
    from lightkube.resources.core_v1 import Node

    listed = api.client.list(Node, fields={"metadata.name": name})
    with api.errors(f"reading node {name!r}"):
        found = [node async for node in listed]
        version = listed.resourceVersion
    yield found[0] if found else None

    seconds = random.SystemRandom().randint(*_WATCH_SECONDS)
    watch = api.client.watch(
        Node,
        fields={"metadata.name": name},
        resource_version=version,
        server_timeout=seconds,
    )
    deadline = asyncio.get_running_loop().time() + seconds + _GRACE_SECONDS
    async with contextlib.aclosing(_generator(watch)) as events:
        while True:
            try:
                # Not around the `yield`: the time would run while the reader works.
                async with asyncio.timeout_at(deadline):
                    with api.errors(f"watching node {name!r}"):
                        event, node = await anext(events)
            except (TimeoutError, StopAsyncIteration):
                return
            if event in ("ADDED", "MODIFIED"):
                yield node


def _generator(
    watch: AsyncIterable[tuple[str, Node]],
) -> AsyncGenerator[tuple[str, Node], None]:
    """lightkube promises less than it returns; what it returns can be closed."""
    return cast("AsyncGenerator[tuple[str, Node], None]", watch)


def _value(node: Node | None, label: str) -> str | None:
    if node is None or node.metadata is None:
        return None
    return (node.metadata.labels or {}).get(label)


class _Outage:
    """Says once that the API server is away, and once that it is back."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._told = False

    def begin(self, error: ClusterError) -> None:
        if not self._told:
            self._told = True
            log.warning("the API server does not answer; what it said last holds", reason=error)

    def over(self) -> None:
        if self._told:
            self._told = False
            log.info("the API server answers again", server=self._url)
