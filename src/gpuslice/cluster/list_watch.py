"""Lists objects of the API server, then yields their changes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from gpuslice.cluster.client import ApiServer

# How long the server keeps a watch open. It differs from node to node to spread the load.
_WATCH_SECONDS = (240, 360)
# The server has dropped a watch that lasts longer.
_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Query:
    """`kind` is a class of lightkube, `name` is for messages."""

    kind: type[Any]
    name: str
    fields: dict[str, Any]
    # "*": all namespaces. None: objects of this kind have none.
    namespace: str | None = None
    # Objects in one answer to a list. None: all.
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects."""

    objects: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """An object that is new or has changed, or that is gone."""

    object: Any
    is_gone: bool = False


async def list_and_watch(api: ApiServer, query: Query) -> AsyncGenerator[Listed | Changed, None]:
    """Yields the list, then each change, for some minutes. Raises ClusterError."""
    # Its signatures differ for kinds with and without namespaces.
    client: Any = api.client
    which = {"fields": query.fields, "namespace": query.namespace}
    listed = client.list(query.kind, chunk_size=query.chunk, **which)
    with api.errors(f"reading {query.name}"):
        found = [one async for one in listed]
        version = listed.resourceVersion
    yield Listed(tuple(found))
    del found  # it can be large, and the watch lasts for minutes

    seconds = random.SystemRandom().randint(*_WATCH_SECONDS)
    watch = client.watch(query.kind, resource_version=version, server_timeout=seconds, **which)
    deadline = asyncio.get_running_loop().time() + seconds + _GRACE_SECONDS
    async with contextlib.aclosing(watch) as events:
        while True:
            try:
                # Not around the `yield`, which takes as long as the caller takes.
                async with asyncio.timeout_at(deadline):
                    with api.errors(f"watching {query.name}"):
                        event, one = await anext(events)
            except (TimeoutError, StopAsyncIteration):
                return
            if event in ("ADDED", "MODIFIED", "DELETED"):
                yield Changed(one, is_gone=event == "DELETED")
