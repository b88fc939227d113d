"""Gives each container a static partition of the SMs of its GPU.

The daemon makes the ids of partitions, and they end with it. So a container gets its partition each
time it starts. Its CDI specification has the id, and nothing else has to be remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.inject.container import Injection
from gpuslice.inject.edits import NOTHING, ContainerEdits
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.mps.control import ControlClient, MpsUnavailable
from gpuslice.mps.partitions import (
    PartitionError,
    add_partition,
    list_partitions,
    remove_partitions,
)
from gpuslice.slicing.grant import Grant, GrantedPart
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

VARIABLE = "CUDA_MPS_SM_PARTITION"
# The names of partitions in all specifications. Blocks.
Referenced = Callable[[], Collection[str]]


class SmPartitions:
    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        # One at a time: each looks for free chunks first.
        self._lock = asyncio.Lock()
        # Those that no specification may have yet, and when they were added.
        self._new: dict[str, float] = {}
        # Pipe directories and GPUs that have partitions.
        self._places: set[tuple[str, str]] = set()

    async def edits(
        self, granted: Grant, injection: Injection, known: str | None, referenced: Referenced
    ) -> ContainerEdits:
        """`known` is its partition at its last start. Raises Refused."""
        found = [one for one in granted.parts if _daemon(one) is not None]
        if not found:
            return NOTHING
        try:
            if len(found) > 1:
                raise PartitionError(
                    "CUDA programs can have a partition of one GPU, and it has shares of several: "
                    "request shares of one GPU"
                )
            [one] = found
            async with self._lock:
                pipe = injection.daemons[_daemon(one) or ""].pipe
                name = await self._partition(one, pipe, known, referenced)
        except (PartitionError, MpsUnavailable) as error:
            raise Refused(
                Code.SM_PARTITION_UNAVAILABLE,
                f"{granted.pool.resource}: the container waits because it gets no partition of "
                f"SMs: {error}",
            ) from error
        return ContainerEdits({VARIABLE: name})

    async def collect(self, referenced: Referenced) -> None:
        """Removes partitions that no specification has. Their containers are gone."""
        async with self._lock:
            for pipe, gpu in self._places:
                try:
                    await self._remove_unused(self._control(pipe), gpu, referenced)
                except (PartitionError, MpsUnavailable):
                    continue  # the daemon ended, and its partitions with it

    async def _partition(
        self, granted: GrantedPart, pipe: str, known: str | None, referenced: Referenced
    ) -> str:
        gpu, control = granted.part.device.uuid, self._control(pipe)
        self._places.add((pipe, gpu))
        listed = await list_partitions(control, gpu)
        threads = granted.part.share.threads
        assert threads is not None
        chunks = threads.chunks(granted.count, listed.chunks)
        if known is not None and known.partition("/")[0] == gpu:
            had = listed.partitions.get(known.partition("/")[2])
            if had is not None and had.chunks == chunks:
                return known
        if chunks > listed.free_chunks:
            await self._remove_unused(control, gpu, referenced)
        name = await add_partition(control, gpu, chunks)
        self._new[name] = asyncio.get_running_loop().time()
        log.info(Code.SM_PARTITION_ADDED, "added a partition of SMs", partition=name, chunks=chunks)
        return name

    async def _remove_unused(
        self, control: ControlClient, gpu: str, referenced: Referenced
    ) -> None:
        now = asyncio.get_running_loop().time()
        keep = self._timing.bound_spec_keep
        self._new = {name: added for name, added in self._new.items() if now - added < keep}
        needed = {*await asyncio.to_thread(referenced), *self._new}
        listed = await list_partitions(control, gpu)
        unused = [
            one
            for one, partition in listed.partitions.items()
            if f"{gpu}/{one}" not in needed and not partition.in_use
        ]
        await remove_partitions(control, gpu, unused)
        if unused:
            log.info(
                Code.SM_PARTITION_REMOVED,
                "removed partitions of SMs of containers that are gone",
                gpu=gpu,
                count=len(unused),
            )

    def _control(self, pipe: str) -> ControlClient:
        return ControlClient(pipe, self._timing.mps_command)


def _daemon(granted: GrantedPart) -> str | None:
    """The name of the daemon that makes its partitions; None: it has none."""
    threads = granted.part.share.threads
    return granted.part.daemon if threads is not None and threads.partitioned else None
