"""Finds out whether the driver can limit the memory of cgroups on this node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from gpuslice.cgroup_limits.apply import NotLimited, check_support
from gpuslice.cgroup_limits.directories import NoCgroups, find_kubepods, limits_are_inherited
from gpuslice.config.memory_limit_settings import MemoryLimitMode
from gpuslice.config.settings import Settings
from gpuslice.node.driver import Driver
from gpuslice.node.errors import NoGpus
from gpuslice.node.snapshot import Snapshot
from gpuslice.slicing.tiers import driver_can_limit

_FLAT = (
    "the kernel has no dmem controller for cgroups (6.14 and newer can have it), so the driver "
    "limits a container only after it has started, when its own cgroup exists"
)


@dataclass(frozen=True, slots=True)
class Support:
    # Why a container cannot be limited before it starts; empty: it can.
    reason: str = ""
    # Whether limits can be set at all.
    can_set: bool = False
    # The directories above all pods.
    kubepods: tuple[Path, ...] = ()

    @property
    def inherited(self) -> bool:
        """Whether the limit of a pod applies to its containers."""
        return self.can_set and not self.reason


class LimitSupport:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # The GPUs and the directory where limits could be set.
        self._proven: tuple[frozenset[str], Path] | None = None

    async def read(self, snapshot: Snapshot, settings: Settings) -> Support:
        if settings.memory_limits.mode is MemoryLimitMode.OFF:
            return Support("the option memory-limits is off")
        if not settings.kubelet_socket:
            return Support("the agent does not register with a kubelet")
        uuids = {
            part.device.uuid
            for pool in snapshot.pools
            if driver_can_limit(pool)
            for part in pool.parts
        }
        if not uuids:
            return Support("no resource has shares of memory that the driver can limit")
        indices = {gpu.uuid: gpu.index for gpu in snapshot.inventory.gpus if gpu.uuid in uuids}
        root = Path(settings.memory_limits.cgroup_root)
        try:
            kubepods = await asyncio.to_thread(find_kubepods, root)
            key = frozenset(indices), kubepods[0]
            await self._driver.read(
                lambda nvml: check_support(nvml, indices, kubepods[0], write=self._proven != key)
            )
        except (NoCgroups, NotLimited, NoGpus) as error:
            self._proven = None
            return Support(str(error))
        self._proven = key
        inherited = await asyncio.to_thread(limits_are_inherited, root)
        return Support("" if inherited else _FLAT, can_set=True, kubepods=kubepods)
