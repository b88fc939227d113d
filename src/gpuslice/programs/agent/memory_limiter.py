"""Lets the driver limit the memory of all processes of a container together, by cgroups.

MPS limits each process. Drivers from 615 on limit a cgroup, whatever its processes do. When a
container is about to start, the cgroup of its pod exists and its own does not. So the pod is
limited first, to what all its containers were granted together, and each container to its own share
as soon as its cgroup exists. The limit of the pod leaves no gap in time, if the kernel applies it
to the cgroups below. The limit of the container keeps it from using the share of another one of its
pod, and is the one that CUDA reports.

Limits end with their cgroups, so nothing has to be removed, and nothing is remembered: after a
restart, the agent compares what the driver has with what the kubelet has allocated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.cgroup_limits.apply import (
    Applied,
    NotLimited,
    Target,
    apply_limits,
)
from gpuslice.cgroup_limits.directories import find_containers, find_pod
from gpuslice.cgroup_limits.wanted import PodDevices, container_limits, holder_of, limits_of
from gpuslice.codes import Code
from gpuslice.config.memory_limit_settings import MemoryLimitMode
from gpuslice.config.settings import Settings
from gpuslice.config.timing import Timing
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.node.driver import Driver
from gpuslice.node.errors import NoGpus
from gpuslice.node.snapshot import DriverLimits, Snapshot
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.limit_support import LimitSupport, Support
from gpuslice.programs.agent.pod_devices import PodDevicesReader, PodsUnknown
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.tiers import Tier, driver_can_limit, has_memory_shares
from gpuslice.slicing.units import describe_mib
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel
from gpuslice.telemetry.metrics import Metrics
from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.container_names import read_container_names

log = Logger(__name__)

_MIB = 1024 * 1024
_ROUND = "round"


@dataclass(frozen=True)
class _Awaited:
    """A pod in which a container is about to start."""

    pod: PodDevices
    cgroup: Path
    # Containers that exist already, by id.
    known: frozenset[str]
    until: float


class MemoryLimiter:
    def __init__(
        self,
        driver: Driver,
        state: NodeState,
        metrics: Metrics,
        timing: Timing,
        pods: PodDevicesReader,
    ) -> None:
        self._driver = driver
        self._state = state
        self._metrics = metrics
        self._timing = timing
        self._pods = pods
        self._supporting = LimitSupport(driver)
        # None: not known yet.
        self._support: Support | None = None
        # By UID of the pod.
        self._awaited: dict[str, _Awaited] = {}
        self._wake = asyncio.Event()
        self._conditions = Conditions(log)

    async def require(self, pool: Pool, ids: Sequence[str]) -> None:
        """Call it before each start of a container. Raises Refused.

        With `auto`, the container starts also if the driver does not limit it.
        """
        settings = self._state.current.settings
        mode = MemoryLimitMode.OFF if settings is None else settings.memory_limits.mode
        if settings is None or mode is MemoryLimitMode.OFF or not has_memory_shares(pool):
            return
        try:
            await self._limit(pool, ids, settings)
        except NotLimited as error:
            self._metrics.memory_limited(False)
            if mode is MemoryLimitMode.DRIVER:
                raise Refused(
                    Code.MEMORY_NOT_LIMITED,
                    f"{pool.resource}: the container waits because the driver does not limit its "
                    f"memory, and memory-limits is driver: {error}",
                ) from error
            log.warning(
                Code.MEMORY_NOT_LIMITED,
                "a container starts although the driver does not limit its memory",
                resource=pool.resource,
                reason=error,
            )
            self._publish(DriverLimits(work=False, reason=str(error)))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            until = asyncio.get_running_loop().time() + self._timing.memory_limit_scan
            try:
                await self._round()
                while await self._awaits_containers(until):
                    await self._limit_started()
            except Exception as error:  # noqa: BLE001 (the GPUs of the node do not depend on it)
                self._publish(DriverLimits(work=False, reason=f"{type(error).__name__}: {error}"))
                await asyncio.sleep(self._timing.memory_limit_scan)

    # Before a container starts

    async def _limit(self, pool: Pool, ids: Sequence[str], settings: Settings) -> None:
        """Raises NotLimited. With `auto`, returns if the driver is known to have no limits."""
        if not driver_can_limit(pool):
            if settings.memory_limits.mode is MemoryLimitMode.AUTO:
                return
            raise NotLimited("the driver does not limit MIG devices by cgroups")
        is_required = settings.memory_limits.mode is MemoryLimitMode.DRIVER
        support = self._support
        if support is None or (is_required and support.reason):
            # It may work now, for example because of another driver.
            support = await self._probe(self._state.current, settings)
        if support.reason and is_required:
            raise NotLimited(support.reason)
        if not support.can_set:
            return
        pod, cgroup = await self._find_pod(pool, ids, settings, support.kubepods)
        wanted = limits_of(pod.together, self._state.current.pools)
        if any(one not in pool.owners for one in ids) or not wanted:
            raise NotLimited("its devices are no longer advertised: delete the pod")
        known = frozenset(await asyncio.to_thread(find_containers, cgroup))
        if support.inherited:
            applied = await self._apply([Target(cgroup, wanted)])
            for reason in applied.failed.values():
                raise NotLimited(reason)
            log.info(
                Code.MEMORY_LIMITED,
                "the driver limits the memory of a pod",
                resource=pool.resource,
                pod_uid=pod.uid,
                limits=_describe(wanted),
                tier=Tier.DRIVER.value,
            )
        until = asyncio.get_running_loop().time() + self._timing.memory_limit_start
        self._awaited[pod.uid] = _Awaited(pod, cgroup, known, until)
        self._wake.set()

    async def _find_pod(
        self, pool: Pool, ids: Sequence[str], settings: Settings, kubepods: tuple[Path, ...]
    ) -> tuple[PodDevices, Path]:
        """Raises NotLimited."""
        try:
            pods = await self._pods.read(Path(settings.kubelet_socket), self._resources())
        except PodsUnknown as error:
            raise NotLimited(str(error)) from error
        pod = holder_of(pods, pool.resource, ids)
        if pod is None:
            raise NotLimited("the kubelet does not tell which pod it belongs to")
        cgroup = await asyncio.to_thread(find_pod, kubepods, pod.uid)
        if cgroup is None:
            places = ", ".join(map(str, kubepods))
            raise NotLimited(f"pod {pod.uid} has no cgroup below {places}")
        return pod, cgroup

    # Running containers

    async def _round(self) -> None:
        snapshot = self._state.current
        if snapshot.settings is None:
            return
        support = await self._probe(snapshot, snapshot.settings)
        failure = await self._reconcile(snapshot.settings, support) if support.can_set else ""
        reason = failure or support.reason
        self._publish(DriverLimits(work=not reason, reason=reason, can_set=support.can_set))

    async def _probe(self, snapshot: Snapshot, settings: Settings) -> Support:
        self._support = await self._supporting.read(snapshot, settings)
        return self._support

    async def _reconcile(self, settings: Settings, support: Support) -> str:
        """Every pod and every container gets its limits, also if somebody changed them.

        Returns why not all have them, or an empty text.
        """
        try:
            pods = await self._pods.read(Path(settings.kubelet_socket), self._resources())
        except PodsUnknown as error:
            return str(error)
        targets, lost = await asyncio.to_thread(self._targets, pods, settings, support)
        try:
            applied = await self._apply(targets)
        except NotLimited as error:
            return str(error)
        for target in applied.changed:
            log.info(
                Code.MEMORY_LIMIT_CHANGED,
                "set the memory limit of a cgroup that had another one or none",
                cgroup=target.cgroup,
                limits=_describe(target.limits),
            )
        failed = "; ".join(sorted(set(applied.failed.values())))
        if not failed:
            self._conditions.clear(_ROUND)
            return ""
        self._conditions.set(
            _ROUND,
            Code.MEMORY_NOT_LIMITED,
            "the driver does not limit the memory of running containers",
            failed,
            level=LogLevel.WARNING,
            cgroups=len(applied.failed),
            pods_without_cgroup=lost,
        )
        return failed

    async def _awaits_containers(self, until: float) -> bool:
        """Waits until containers that start should be searched. False: it is time for a round."""
        loop = asyncio.get_running_loop()
        if not self._awaited:
            self._wake.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._wake.wait()
            except TimeoutError:
                return False
        await asyncio.sleep(self._timing.memory_limit_poll)
        return loop.time() < until

    async def _limit_started(self) -> None:
        """The cgroups of containers that have started since."""
        now = asyncio.get_running_loop().time()
        for uid, one in tuple(self._awaited.items()):
            is_limited = await self._limit_containers(one)
            if (is_limited or now > one.until) and self._awaited.get(uid) is one:
                del self._awaited[uid]

    async def _limit_containers(self, awaited: _Awaited) -> bool:
        """Whether the new container has its limit."""
        settings = self._state.current.settings
        if settings is None:
            return False
        targets = await asyncio.to_thread(self._started, awaited, settings)
        try:
            applied = await self._apply(targets)
        except NotLimited:
            return False  # a round reports it
        for target in applied.changed:
            log.info(
                Code.MEMORY_LIMITED,
                "the driver limits the memory of a container",
                pod_uid=awaited.pod.uid,
                cgroup=target.cgroup.name,
                limits=_describe(target.limits),
            )
        return bool(targets) and not applied.failed

    def _started(self, awaited: _Awaited, settings: Settings) -> list[Target]:
        """Blocks."""
        found = find_containers(awaited.cgroup)
        new = {one: path for one, path in found.items() if one not in awaited.known}
        return list(self._containers(awaited.pod, new, settings))

    def _targets(
        self, pods: Iterable[PodDevices], settings: Settings, support: Support
    ) -> tuple[list[Target], int]:
        """Also the number of pods without a cgroup: they have ended, or not started. Blocks."""
        targets: list[Target] = []
        lost = 0
        for pod in pods:
            cgroup = find_pod(support.kubepods, pod.uid)
            limits = limits_of(pod.together, self._state.current.pools)
            if cgroup is None:
                lost += 1
            elif limits:
                if support.inherited:
                    targets.append(Target(cgroup, limits))
                targets += self._containers(pod, find_containers(cgroup), settings)
        return targets, lost

    def _containers(
        self, pod: PodDevices, found: Mapping[str, Path], settings: Settings
    ) -> Iterable[Target]:
        """Blocks."""
        ids = [ContainerId(pod.uid, container_id) for container_id in found]
        names: dict[str, str] = {}
        if len(pod.containers) > 1:
            try:
                known = read_container_names(Path(settings.watchdog.container_logs), ids)
            except OSError:  # then only the limit of the pod applies
                known = {}
            names = {one.container_id: name.container for one, name in known.items()}
        for container_id, limits in container_limits(pod, names, found, self._state.current.pools):
            yield Target(found[container_id], limits)

    # Both

    async def _apply(self, targets: Sequence[Target]) -> Applied:
        """Raises NotLimited if the driver does not answer."""
        if not targets:
            return Applied()
        indices = _indices(self._state.current)
        try:
            applied = await self._driver.read(lambda nvml: apply_limits(nvml, indices, targets))
        except NoGpus as error:
            raise NotLimited(str(error)) from error
        for _ in applied.changed:
            self._metrics.memory_limited(True)
        return applied

    def _resources(self) -> frozenset[str]:
        pools = self._state.current.pools
        return frozenset(pool.resource for pool in pools if has_memory_shares(pool))

    def _publish(self, limits: DriverLimits) -> None:
        self._state.publish(replace(self._state.current, driver_limits=limits))


def _indices(snapshot: Snapshot) -> dict[str, int]:
    return {gpu.uuid: gpu.index for gpu in snapshot.inventory.gpus}


def _describe(limits: Mapping[str, int]) -> str:
    return ",".join(
        f"{uuid}={describe_mib(limit // _MIB).replace(' ', '')}" for uuid, limit in limits.items()
    )
