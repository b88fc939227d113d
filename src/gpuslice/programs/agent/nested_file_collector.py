"""Removes lists of GPUs for nested nodes that no container uses any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.nested_files import remove_nested_files, unused_nested_files
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


class NestedFileCollector:
    """A container that mounts a list holds the GPUs in it, so the kubelet lists them as in use.

    A file is removed if none of its GPUs is in use twice in a row, and if no Allocate needed it for
    a long time: a container may wait for its image before it mounts the file.
    """

    def __init__(self, state: NodeState, timing: Timing) -> None:
        self._state = state
        self._timing = timing
        self._unused: frozenset[Path] = frozenset()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._timing.nested_file_scan)
            await self._collect()

    async def _collect(self) -> None:
        snapshot = self._state.current
        if snapshot.settings is None or snapshot.in_use is None:
            self._unused = frozenset()
            return
        used = "\n".join(one for ids in snapshot.in_use.values() for one in ids)
        directory = Path(snapshot.settings.nested_directory)
        keep = self._timing.nested_file_keep
        unused = await asyncio.to_thread(unused_nested_files, directory, used, keep)
        before, self._unused = self._unused, unused
        removed = await asyncio.to_thread(remove_nested_files, unused & before, keep)
        for path in removed:
            log.info(
                Code.NESTED_FILE_REMOVED, "removed a list of GPUs that no container uses", file=path
            )
