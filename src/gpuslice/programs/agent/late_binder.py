"""Gives each container its limits at the moment it starts, as a CDI specification."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuslice.cdi.bound_specs import BoundSpecs, device_name, qualified
from gpuslice.cdi.errors import CdiError
from gpuslice.cluster.errors import ClusterError
from gpuslice.cluster.pod_annotations import PodAnnotations
from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.inject.bound import specified
from gpuslice.inject.container import Injection, edits_of_one
from gpuslice.inject.edits import NOTHING, ContainerEdits, merged
from gpuslice.inject.memory_limit import driver_limit
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.kubelet.pod_resources import Holders, PodResourcesError
from gpuslice.mps.daemons import daemons_of
from gpuslice.node.snapshot import Binding
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.binding import BindingPlan
from gpuslice.programs.agent.container_namespaces import (
    ContainerNamespaces,
    have_namespaces,
)
from gpuslice.programs.agent.kubelet_containers import KubeletContainers
from gpuslice.programs.agent.sm_partitions import VARIABLE, SmPartitions
from gpuslice.programs.agent.thread_shares import ThreadShares
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.holders import Starting
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.thread_annotations import ThreadAnnotations, apply_annotation
from gpuslice.slicing.threads import ThreadAmount
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

_COLLECT, _PROBE = "collect", "probe"
# A runtime that was never seen to read specifications probably ignores them.
_SHORT_WAIT = 0.2


class LateBinder:
    """Writes specifications, removes those that nothing uses, and publishes whether they apply."""

    def __init__(
        self, state: NodeState, timing: Timing, pods: PodAnnotations | None = None
    ) -> None:
        """`pods`: None if there is no API server."""
        self._threads = ThreadShares(state, pods)
        self._state = state
        self._timing = timing
        self._containers = KubeletContainers(state)
        self._plan: BindingPlan | None = None
        self._specs: BoundSpecs | None = None
        self._directory = ""
        # Whether the runtime was seen to read specifications.
        self._is_read = False
        # Whether it had an occasion.
        self._is_probed = False
        self._partitions = SmPartitions(timing)
        self._namespaces = ContainerNamespaces(timing)
        self._conditions = Conditions(log)

    def apply(self, plan: BindingPlan | None, directory: str) -> None:
        if directory != self._directory:
            self._directory = directory
            self._is_read = self._is_probed = False
            self._specs = BoundSpecs(Path(directory))
        self._plan = plan
        self._publish()

    async def forget(self, resource: str, ids: Sequence[str]) -> None:
        """Call it in Allocate: another pod may have had the same devices. Raises Refused.

        If the runtime missed the next change, it would create the container with the limits of that
        pod. Without the specification, it does not create the container, and the kubelet retries.
        """
        name, specs = device_name(resource, ids), self._specs
        if specs is None or name not in specs:
            return
        try:
            await asyncio.to_thread(specs.remove, name)
        except CdiError as error:
            raise Refused(error.code, f"{resource}: {error}") from error

    async def require_one_resource(
        self, resource: str, ids: Sequence[str], limited: Collection[str]
    ) -> None:
        """Call it before each start of a container. Raises Refused."""
        await self._containers.require_one_resource(resource, ids, limited)

    async def bind(self, pool: Pool, injection: Injection, ids: Sequence[str]) -> None:
        """Call it before each start of a container. Raises Refused."""
        plan, specs = self._plan, self._specs
        if plan is None or specs is None:
            return
        began = time.monotonic()
        name = device_name(pool.resource, ids)
        if not plan.names_cdi and not await self._was_named(name, specs):
            return
        try:
            granted = grant(pool, ids)
        except GrantRefused as refusal:
            if name in specs:
                # It has what it had; the settings changed since.
                await self._require_namespace(pool.resource, name, specs)
                return
            raise Refused(refusal.code, f"{pool.resource}: the container waits: {refusal}") from (
                refusal
            )
        starting = await self._containers.starting(pool.resource, ids)
        try:
            wanted = await self._wanted_threads(starting, pool.resource, ids)
            adjust = partial(apply_annotation, wanted=wanted, policy=self._threads.policy)
            injection = self._namespaces.injection(injection, name)
            edits = edits_of_one(granted, starting.pod_count, injection, adjust)
        except ClusterError as error:
            if name in specs:
                # The limits of its last start.
                await self._require_namespace(pool.resource, name, specs)
                return
            raise Refused(
                Code.ANNOTATIONS_UNKNOWN,
                f"{pool.resource}: the container waits because its limits cannot be set: the "
                f"annotations of its pod cannot be read: {error}",
            ) from error
        except GrantRefused as refusal:
            raise Refused(refusal.code, f"{pool.resource}: the container waits: {refusal}") from (
                refusal
            )
        partition = await self._partition(granted, injection, name, specs)
        edits = merged([edits, self._driver_limit(granted), partition])
        namespace = await self._namespaces.require(pool.resource, edits.env)
        wait = self._timing.cdi_read if self._is_read else _SHORT_WAIT * self._timing.cdi_read
        try:
            is_read = await specs.put(name, specified(edits), wait)
        except CdiError as error:
            raise Refused(
                error.code,
                f"{pool.resource}: the container waits because its limits cannot be set: {error}",
            ) from error
        if is_read is None:
            return
        log.info(
            Code.LIMITS_BOUND,
            "wrote the limits of a container",
            resource=pool.resource,
            pod=starting.pod,
            container=starting.container or "an init container",
            cdi=qualified(name),
            read=is_read,
            namespace=namespace is not None,
            took=f"{1e3 * (time.monotonic() - began):.0f}ms",
            **self._tier(pool.resource),
        )
        self._seen(is_read)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe_periodically())
            tasks.create_task(self._collect_periodically())
            tasks.create_task(self._reconcile_namespaces())
            tasks.create_task(self._threads.run())

    async def _require_namespace(self, resource: str, name: str, specs: BoundSpecs) -> None:
        """That of its last start. Raises Refused."""
        found = await asyncio.to_thread(specs.environments)
        await self._namespaces.require(resource, found.get(name, {}))

    async def _reconcile_namespaces(self) -> None:
        while True:
            settings, specs = self._state.current.settings, self._specs
            if settings is not None and specs is not None:
                daemons = daemons_of(self._state.current.pools, settings).values()
                state = replace(self._state.current, namespaces=have_namespaces(daemons))
                self._state.publish(state)
                await self._namespaces.reconcile(daemons, specs.environments)
            await asyncio.sleep(self._timing.mps_probe)

    def _driver_limit(self, granted: Grant) -> ContainerEdits:
        limits = self._state.current.driver_limits
        return driver_limit(granted) if limits is not None and limits.can_set else NOTHING

    async def _partition(
        self, granted: Grant, injection: Injection, name: str, specs: BoundSpecs
    ) -> ContainerEdits:
        """Raises Refused."""
        if not granted.pool.has_partitions:
            return NOTHING
        known = (await asyncio.to_thread(specs.variables, VARIABLE)).get(name)
        return await self._partitions.edits(
            granted, injection, known, lambda: specs.variables(VARIABLE).values()
        )

    def _tier(self, resource: str) -> dict[str, str]:
        tier = self._state.current.tiers.get(resource)
        return {} if tier is None else {"tier": tier.value}

    async def _wanted_threads(
        self, starting: Starting, resource: str, ids: Sequence[str]
    ) -> ThreadAmount | None:
        """Raises ClusterError or GrantRefused."""
        if self._threads.policy is ThreadAnnotations.OFF:
            return None
        return await self._threads.wanted(starting, await self._containers.uid(resource, ids))

    async def _was_named(self, name: str, specs: BoundSpecs) -> bool:
        """Whether an earlier answer of Allocate, under other settings, names a specification.

        The kubelet keeps that answer, and the container would not start without the specification.
        """
        if name in specs:
            return True
        entries = await self._containers.checkpoint()
        return any(qualified(name) in entry.cdi_devices for entry in entries)

    async def _probe_periodically(self) -> None:
        while True:
            if self._plan is not None and self._plan.names_cdi and not self._is_read:
                await self._probe()
            await asyncio.sleep(self._timing.cdi_probe)

    async def _probe(self) -> None:
        assert self._specs is not None
        try:
            self._seen(await self._specs.probe(self._timing.cdi_read))
        except CdiError as error:
            # Containers that start report it, too.
            self._conditions.set(
                _PROBE,
                error.code,
                "cannot write CDI specifications",
                error,
                level=LogLevel.WARNING,
            )

    async def _collect_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._timing.bound_spec_scan)
            await self.collect()

    async def collect(self) -> None:
        """Removes the specifications of containers that the kubelet does not list.

        It lists no init containers. The runtime needs a specification only to create the container,
        and before each start the specification is written again.
        """
        specs = self._specs
        if specs is None or not self._containers.socket.name:
            return
        try:
            keep = _names(await self._containers.listed())
            removed = await asyncio.to_thread(specs.collect, keep, self._timing.bound_spec_keep)
        except (PodResourcesError, CdiError) as error:
            self._conditions.set(
                _COLLECT,
                Code.CDI_SPEC_OUTDATED,
                "cannot remove CDI specifications that nothing uses",
                error,
                level=LogLevel.WARNING,
            )
            return
        self._conditions.clear(_COLLECT)
        await self._partitions.collect(lambda: specs.variables(VARIABLE).values())
        if removed:
            log.info(
                Code.BOUND_SPEC_REMOVED,
                "removed CDI specifications of containers that are gone",
                count=len(removed),
            )

    def _seen(self, is_read: bool) -> None:  # noqa: FBT001
        """A busy runtime may be late once. One that never reads ignores CDI."""
        self._conditions.clear(_PROBE)
        self._is_probed = True
        self._is_read |= is_read
        self._publish()

    def _publish(self) -> None:
        self._state.publish(replace(self._state.current, binding=self._binding()))

    def _binding(self) -> Binding | None:
        plan = self._plan
        if plan is None:
            return None
        if not plan.names_cdi:
            return Binding(by_cdi=False, reason=plan.reason, is_chosen=plan.is_chosen)
        if self._is_read or plan.strict:
            return Binding(by_cdi=True)
        if not self._is_probed:
            return None
        return Binding(
            by_cdi=False,
            reason=f"no container runtime reads {self._directory}: enable CDI in the runtime "
            "(containerd 1.7: enable_cdi = true), and create the directory before it starts",
        )


def _names(listed: Holders) -> frozenset[str]:
    """The names of the specifications of these containers."""
    return frozenset(
        device_name(resource, one.ids) for resource, some in listed.items() for one in some
    )
