"""Answers the kubelet's requests for one pool."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gpuslice.cdi.bound_specs import device_name, qualified
from gpuslice.codes import Code
from gpuslice.config.memory_limit_settings import MemoryLimitMode
from gpuslice.config.settings import MpsCheck
from gpuslice.inject.bound import named_answer
from gpuslice.inject.container import container_edits
from gpuslice.inject.edits import ContainerEdits
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.kubelet.watchable import Watchable
from gpuslice.kubelet.wire import DeviceGroup
from gpuslice.mps.control import MpsUnavailable
from gpuslice.node.snapshot import Snapshot
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.binding import binds_late, limited_resources
from gpuslice.programs.agent.daemon_monitor import DaemonMonitor
from gpuslice.programs.agent.late_binder import LateBinder
from gpuslice.programs.agent.memory_limiter import MemoryLimiter
from gpuslice.programs.agent.nested_files import NestedFileError
from gpuslice.programs.agent.plan import AgentPlan
from gpuslice.programs.agent.usage_tracker import UsageTracker
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.preference import prefer
from gpuslice.slicing.rules import SharingStrategy
from gpuslice.slicing.tiers import has_memory_shares

# Tag and length of an id in a message.
_BYTES_PER_ID = 3
# Ids of an earlier pool, and mistakes: their refusals name the id.
_SLACK_BYTES = 64 * 1024


class PoolPlugin:
    """Implements `kubelet.plugin_service.Resource`."""

    def __init__(
        self,
        pool: Pool,
        plan: AgentPlan,
        state: NodeState,
        monitor: DaemonMonitor,
        usage: UsageTracker,
        binder: LateBinder,
        limiter: MemoryLimiter,
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._state = state
        self._monitor = monitor
        self._usage = usage
        self._binder = binder
        self._limiter = limiter
        # None: not computed yet.
        self._longest_request: int | None = None
        self._devices = Watchable(self._advertised(state.current))

    @property
    def name(self) -> str:
        return self._pool.resource

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def devices(self) -> Watchable[tuple[DeviceGroup, ...]]:
        return self._devices

    @property
    def longest_request(self) -> int:
        if self._longest_request is None:
            ids = sum(len(device_id) + _BYTES_PER_ID for device_id in self._pool.owners)
            # Free devices, and those that must be included.
            self._longest_request = 2 * ids + _SLACK_BYTES
        return self._longest_request

    @property
    def tier(self) -> str | None:
        tier = self._state.current.tiers.get(self.name)
        return None if tier is None else tier.value

    @property
    def pre_start_required(self) -> bool:
        return pre_start_required(self._pool, self._plan)

    def replace(self, pool: Pool, plan: AgentPlan) -> None:
        self._pool, self._plan = pool, plan
        self._longest_request = None
        self.refresh()

    def refresh(self) -> None:
        """Sends the device list to every open stream if it changed."""
        self._devices.set(self._advertised(self._state.current))

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        plan = self._plan
        # The kubelet knows best which devices are free, and tells it here before any list does.
        self._usage.available(self.name, set(available).difference(must_include))
        return prefer(
            self._pool, plan.topology, plan.settings.policy, available, must_include, size
        )

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        pool, injection = self._pool, self._plan.injection
        try:
            grants = [grant(pool, ids) for ids in containers]
            for granted in grants:
                self._check_healthy(granted)
            if pool.nested:
                # It writes files, and a disk or a lock must not stop the other resources.
                edits = await asyncio.to_thread(container_edits, grants, injection)
            else:
                edits = container_edits(grants, injection)
        except (GrantRefused, NestedFileError) as refusal:
            raise Refused(
                refusal.code, f'invalid allocation request for "{self.name}": {refusal}'
            ) from refusal
        binding = self._plan.binding
        if binding is not None and binding.names_cdi and binds_late(pool):
            edits = [
                await self._named(pool, ids, one, strict=binding.strict)
                for ids, one in zip(containers, edits, strict=True)
            ]
        self._usage.allocated(self.name, (one for ids in containers for one in ids))
        return edits

    async def pre_start(self, ids: Sequence[str]) -> None:
        for part in self._parts(ids):
            for fault in self._state.current.device_faults(part.device):
                raise Refused(
                    fault.code,
                    f"{self.name}: the container waits because GPU {part.device.index} "
                    f"({part.device.uuid}) is unhealthy: {fault.message}",
                )
        for daemon in sorted(self._daemons(ids)):
            try:
                await self._monitor.require(daemon)
            except MpsUnavailable as error:
                raise Refused(
                    Code.MPS_UNAVAILABLE,
                    f"{self.name}: the container waits because its limits would not be enforced: "
                    f"{error}",
                ) from error
        limited = limited_resources(self._plan.pools)
        if self.name in limited and len(limited) > 1:
            await self._binder.require_one_resource(self.name, ids, limited)
        await self._limiter.require(self._pool, ids)
        if binds_late(self._pool):
            await self._binder.bind(self._pool, self._plan.injection, ids)

    async def before_registration(self) -> None:
        if self._pool.advertises_one_gpu:
            await self._usage.read()

    async def _named(
        self, pool: Pool, ids: Sequence[str], edits: ContainerEdits, *, strict: bool
    ) -> ContainerEdits:
        await self._binder.forget(pool.resource, ids)
        name = qualified(device_name(pool.resource, ids))
        return named_answer(edits, name, strict=strict)

    def _daemons(self, ids: Sequence[str]) -> set[str]:
        """The daemons that limit these devices. An unknown device needs all of them."""
        if any(device_id not in self._pool.owners for device_id in ids):
            return set(self._pool.daemons)
        return {part.daemon for part in self._parts(ids) if part.daemon is not None}

    def _parts(self, ids: Sequence[str]) -> list[Part]:
        owners = self._pool.owners
        positions = sorted({owners[device_id] for device_id in ids if device_id in owners})
        return [self._pool.parts[position] for position in positions]

    def _check_healthy(self, granted: Grant) -> None:
        """MPS may recover before the container starts, so its state is checked in `pre_start`."""
        for part in (one.part for one in granted.parts):
            for fault in self._state.current.device_faults(part.device):
                raise GrantRefused(
                    fault.code,
                    f"GPU {part.device.index} ({part.device.uuid}) is unhealthy: {fault.message}. "
                    "Delete the pod so that it is scheduled again",
                )

    def _advertised(self, snapshot: Snapshot) -> tuple[DeviceGroup, ...]:
        advertised = snapshot.advertised_ids(self._pool)
        return tuple(
            DeviceGroup(part.ids, snapshot.healthy(part), part.numa_node, ids)
            for part, ids in zip(self._pool.parts, advertised, strict=True)
        )


def pre_start_required(pool: Pool, plan: AgentPlan) -> bool:
    """Whether containers must not start before their GPU, MPS daemon and shares are checked."""
    if pool.sharing is SharingStrategy.MEMORY:
        return True
    if plan.binding is not None and plan.binding.names_cdi and binds_late(pool):
        return True
    if has_memory_shares(pool) and plan.settings.memory_limits.mode is not MemoryLimitMode.OFF:
        return True
    if binds_late(pool) and len(limited_resources(plan.pools)) > 1:
        return True
    return any(plan.daemons[name].check is not MpsCheck.OFF for name in pool.daemons)
