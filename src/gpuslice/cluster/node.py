"""Watches the agent's own Node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpuslice.backoff import Backoff
from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.errors import ClusterError
from gpuslice.cluster.list_watch import Listed, Query, list_and_watch
from gpuslice.codes import Code
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Node

log = Logger(__name__)

_NOTHING = object()
_API_SERVER = "API server"


async def watch_label(
    api: ApiServer, node_name: str, label: str
) -> AsyncGenerator[str | None, None]:
    """Yields the label's value (None: the Node has none), then every new one.

    Never ends and never fails: while the API server is down, the last value is kept.
    """
    seen: object = _NOTHING
    conditions = Conditions(log)
    backoff = Backoff()
    while True:
        try:
            async with contextlib.aclosing(_follow(api, node_name)) as nodes:
                async for node in nodes:
                    conditions.clear(
                        _API_SERVER,
                        Code.API_SERVER_AVAILABLE,
                        "the API server answers again",
                        server=api.url,
                    )
                    backoff.reset()
                    value = _value(node, label)
                    if node is None and seen is not _NOTHING:
                        continue  # the Node was deleted, and its last label is kept
                    if node is None:
                        log.warning(
                            Code.NODE_NOT_FOUND, "the API server has no such node", node=node_name
                        )
                    if value != seen:
                        seen = value
                        yield value
            continue
        except ClusterError as error:
            if error.status == HTTPStatus.GONE:
                continue
            if _API_SERVER not in conditions:  # the reason may differ in each attempt
                conditions.set(
                    _API_SERVER,
                    Code.API_SERVER_UNAVAILABLE,
                    "the API server does not answer, keeping its last answer",
                    error,
                    level=LogLevel.WARNING,
                )
        await asyncio.sleep(backoff.seconds())


async def _follow(api: ApiServer, name: str) -> AsyncGenerator[Node | None, None]:
    """Yields the Node (None: it does not exist), then each change of it, for some minutes."""
    from lightkube.resources.core_v1 import Node

    query = Query(Node, f"node {name!r}", {"metadata.name": name})
    async with contextlib.aclosing(list_and_watch(api, query)) as steps:
        async for step in steps:
            if isinstance(step, Listed):
                yield step.objects[0] if step.objects else None
            elif not step.is_gone:
                yield step.object


def _value(node: Node | None, label: str) -> str | None:
    if node is None or node.metadata is None:
        return None
    return (node.metadata.labels or {}).get(label)
