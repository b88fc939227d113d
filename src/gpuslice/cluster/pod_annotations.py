"""The annotations of the pods of one node.

Many pods can start at once, and requests to the API server are limited. So the pods of the node are
watched, and a single pod is read only if the watch does not know it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    from lightkube.resources.core_v1 import Pod

log = Logger(__name__)

# More than a kubelet runs. Pods beyond are read when they start.
_MOST_PODS = 2000
# Objects of pods are large.
_CHUNK = 100
# How long a starting container waits for the first list.
_FIRST_LIST_SECONDS = 2.0
# The API server has other uids for static pods. This annotation has that of the kubelet.
_MIRROR = "kubernetes.io/config.mirror"
_WATCH = "watch"

Annotations = Mapping[str, str]
# Annotations of a pod and the names of its containers -> the annotations to keep.
Select = Callable[[Annotations, Iterable[str]], Annotations]


@dataclass(frozen=True, slots=True)
class _Known:
    uid: str
    annotations: Annotations


class PodAnnotations:
    def __init__(self, api: ApiServer, node: str, select: Select) -> None:
        """`node`: the name of the node whose pods are watched."""
        self._api = api
        self._node = node
        self._select = select
        # By namespace and name.
        self._known: dict[tuple[str, str], _Known] = {}
        # Whether the watch got its first answer; None: nothing is watched.
        self._answered: asyncio.Event | None = None
        self._conditions = Conditions(log)

    async def read(self, namespace: str, name: str, uid: str | None) -> Annotations:
        """Of this pod, and not of another one of its name. Raises ClusterError.

        Without `uid`, the pod is always read from the API server. While that does not answer, what
        the watch has seen last is true.
        """
        if self._answered is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), _FIRST_LIST_SECONDS)
        known = self._known.get((namespace, name))
        if known is not None and known.uid == uid:
            return known.annotations
        found = await self._get(namespace, name)
        if uid is not None and found.uid != uid:
            raise ClusterError(
                f"reading pod {namespace}/{name}: the API server has another pod of this name"
            )
        return found.annotations

    async def watch(self) -> None:
        """Until cancelled. A watch that fails is no error: then pods are read one by one."""
        backoff = Backoff()
        self._answered = asyncio.Event()
        try:
            while True:
                try:
                    await self._follow(backoff)
                    continue
                except ClusterError as error:
                    if error.status == HTTPStatus.GONE:
                        continue
                    self._failed(error)
                await asyncio.sleep(backoff.seconds())
        finally:
            self._answered = None
            self._known.clear()

    async def _follow(self, backoff: Backoff) -> None:
        from lightkube.operators import not_in
        from lightkube.resources.core_v1 import Pod

        # Pods that have ended stay in the API server, sometimes thousands of them.
        fields = {"spec.nodeName": self._node, "status.phase": not_in(["Succeeded", "Failed"])}
        query = Query(Pod, f"pods of node {self._node!r}", fields, "*", _CHUNK)
        async with contextlib.aclosing(list_and_watch(self._api, query)) as steps:
            async for step in steps:
                backoff.reset()
                if isinstance(step, Listed):
                    self._known.clear()
                    for pod in step.objects:
                        self._keep(pod)
                    self._succeeded()
                elif step.is_gone:
                    self._known.pop(_key(step.object), None)
                else:
                    self._keep(step.object)
                del step  # a list is large, and the next change may be minutes away

    def _keep(self, pod: Pod) -> None:
        key = _key(pod)
        if key in self._known or len(self._known) < _MOST_PODS:
            self._known[key] = self._read(pod)

    async def _get(self, namespace: str, name: str) -> _Known:
        from lightkube.resources.core_v1 import Pod

        with self._api.errors(f"reading pod {namespace}/{name}"):
            return self._read(await self._api.client.get(Pod, name, namespace=namespace))

    def _read(self, pod: Pod) -> _Known:
        metadata, spec = pod.metadata, pod.spec
        annotations = (metadata and metadata.annotations) or {}
        containers = [*(spec.containers or ()), *(spec.initContainers or ())] if spec else []
        return _Known(
            annotations.get(_MIRROR) or (metadata and metadata.uid) or "",
            self._select(annotations, [one.name for one in containers]),
        )

    def _succeeded(self) -> None:
        if self._answered is not None:
            self._answered.set()
        self._conditions.clear(
            _WATCH, Code.API_SERVER_AVAILABLE, "pods of this node are watched again"
        )

    def _failed(self, error: ClusterError) -> None:
        if self._answered is not None:
            self._answered.set()
        if _WATCH not in self._conditions:  # the reason may differ in each attempt
            self._conditions.set(
                _WATCH,
                Code.API_SERVER_UNAVAILABLE,
                "cannot watch the pods of this node, so unknown ones are read when they start",
                error,
                level=LogLevel.WARNING,
            )


def _key(pod: Pod) -> tuple[str, str]:
    metadata = pod.metadata
    return ((metadata and metadata.namespace) or "", (metadata and metadata.name) or "")
