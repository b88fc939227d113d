"""Which share of the threads the annotations of a pod ask for."""

from __future__ import annotations

import asyncio

from gpuslice.cluster.errors import ClusterError
from gpuslice.cluster.pod_annotations import PodAnnotations
from gpuslice.node.snapshot import Snapshot
from gpuslice.node.state import NodeState
from gpuslice.slicing.holders import Starting
from gpuslice.slicing.thread_annotations import ThreadAnnotations, wanted_threads
from gpuslice.slicing.threads import ThreadAmount


class ThreadShares:
    def __init__(self, state: NodeState, pods: PodAnnotations | None) -> None:
        """`pods`: None if there is no API server."""
        self._state = state
        self._pods = pods
        self._changed = asyncio.Event()
        self._changed.set()
        state.subscribe(self._settings_changed)

    @property
    def policy(self) -> ThreadAnnotations:
        settings = self._state.current.settings
        return ThreadAnnotations.OFF if settings is None else settings.thread_annotations

    async def wanted(self, starting: Starting, uid: str | None) -> ThreadAmount | None:
        """Raises ClusterError or GrantRefused.

        A pod that only the checkpoint of the kubelet has is not known by name: it gets what it was
        granted.
        """
        if self.policy is ThreadAnnotations.OFF or not starting.is_named:
            return None
        if self._pods is None:
            raise ClusterError("there is no API server: set node-name")
        namespace, _, name = starting.pod.partition("/")
        annotations = await self._pods.read(namespace, name, uid)
        return wanted_threads(annotations, starting.container)

    async def run(self) -> None:
        """Watches pods while the settings need it. Until cancelled."""
        watching: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while self._pods is not None:
                await self._changed.wait()
                self._changed.clear()
                is_needed = self.policy is not ThreadAnnotations.OFF
                if is_needed and watching is None:
                    watching = tasks.create_task(self._pods.watch())
                elif not is_needed and watching is not None:
                    watching.cancel()
                    watching = None

    def _settings_changed(self, before: Snapshot, after: Snapshot) -> None:
        if before.settings != after.settings:
            self._changed.set()
