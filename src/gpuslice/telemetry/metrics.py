"""Metrics of the agent: recorded here, rendered by `prometheus`, served by `http_server`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """The devices of a resource."""

    healthy: int
    unhealthy: int
    # Healthy and free, but not advertised: the free devices of another GPU are.
    withheld: int = 0
    # Held by containers; None: unknown.
    in_use: int | None = None
    # Healthy and free, by UUID of the GPU or MIG device.
    free: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """The memory of one GPU that a container uses, and what it was granted.

    The watchdog acts beyond what is allowed, which includes slack.
    """

    namespace: str
    pod: str
    container: str
    gpu: str
    used_bytes: int
    granted_bytes: int
    allowed_bytes: int


class Metrics(Protocol):
    """Called on the event loop only."""

    def reloaded(self, ok: bool) -> None:
        """The configuration was loaded, at start or again."""

    def devices(self, resource: str, counts: DeviceCounts) -> None: ...

    def allocated(self, resource: str, ok: bool) -> None: ...

    def registered(self, resource: str, is_registered: bool) -> None: ...

    def gpu(self, uuid: str, minor: int, healthy: bool) -> None: ...

    def driver(self, problem: str | None) -> None:
        """Why the driver cannot be used; None: it can."""

    def binding(self, mode: str | None) -> None:
        """How containers get their limits: cdi or env; None: no resource has limits."""

    def namespaces(self, work: bool | None) -> None:
        """Whether containers are in namespaces of MPS; None: the settings rule it out."""

    def tiers(self, tiers: Mapping[str, str], node: str | None) -> None:
        """How firmly limits hold, by resource, and on the node: the weakest."""

    def memory_limited(self, ok: bool) -> None:
        """The driver was told to limit a cgroup."""

    def forget(self, resource: str) -> None:
        """The resource is no longer advertised. Its counters stay."""

    def forget_gpu(self, uuid: str) -> None: ...

    def watching(self, is_watching: bool) -> None:
        """Whether the watchdog compares the memory of containers with their grants."""

    def container_memory(
        self, containers: Sequence[ContainerMemory], unattributed_processes: int
    ) -> None:
        """Replaces what was recorded before."""

    def memory_exceeded(self, gpu: str) -> None: ...

    def watchdog_acted(self, action: str, ok: bool) -> None: ...


class NoMetrics:
    """For programs without metrics."""

    def reloaded(self, ok: bool) -> None:
        pass

    def devices(self, resource: str, counts: DeviceCounts) -> None:
        pass

    def allocated(self, resource: str, ok: bool) -> None:
        pass

    def registered(self, resource: str, is_registered: bool) -> None:
        pass

    def gpu(self, uuid: str, minor: int, healthy: bool) -> None:
        pass

    def driver(self, problem: str | None) -> None:
        pass

    def binding(self, mode: str | None) -> None:
        pass

    def namespaces(self, work: bool | None) -> None:
        pass

    def tiers(self, tiers: Mapping[str, str], node: str | None) -> None:
        pass

    def memory_limited(self, ok: bool) -> None:
        pass

    def forget(self, resource: str) -> None:
        pass

    def forget_gpu(self, uuid: str) -> None:
        pass

    def watching(self, is_watching: bool) -> None:
        pass

    def container_memory(
        self, containers: Sequence[ContainerMemory], unattributed_processes: int
    ) -> None:
        pass

    def memory_exceeded(self, gpu: str) -> None:
        pass

    def watchdog_acted(self, action: str, ok: bool) -> None:
        pass


class Recorder:
    """Plain values, so that readiness does not depend on the metrics library."""

    def __init__(self) -> None:
        self.reloads: Counter[bool] = Counter({True: 0, False: 0})
        # None: the configuration has not been loaded yet.
        self.last_reload_ok: bool | None = None
        self.last_good_reload: float | None = None
        self.counts: dict[str, DeviceCounts] = {}
        self.allocations: Counter[tuple[str, bool]] = Counter()
        self.registrations: dict[str, bool] = {}
        # uuid -> (minor, healthy)
        self.gpus: dict[str, tuple[int, bool]] = {}
        self.driver_problem: str | None = None
        self.binding_mode: str | None = None
        self.has_namespaces: bool | None = None
        self.resource_tiers: Mapping[str, str] = {}
        # None: no resource is shared.
        self.node_tier: str | None = None
        self.memory_limits: Counter[bool] = Counter()
        # None: there is no watchdog.
        self.is_watching: bool | None = None
        self.container_memories: tuple[ContainerMemory, ...] = ()
        self.unattributed_processes = 0
        # By UUID of the GPU: names of containers would grow without bound.
        self.violations: Counter[str] = Counter()
        self.watchdog_actions: Counter[tuple[str, bool]] = Counter()

    def reloaded(self, ok: bool) -> None:
        self.reloads[ok] += 1
        self.last_reload_ok = ok
        if ok:
            self.last_good_reload = time.time()

    def devices(self, resource: str, counts: DeviceCounts) -> None:
        self.counts[resource] = counts
        self.registrations.setdefault(resource, False)

    def allocated(self, resource: str, ok: bool) -> None:
        self.allocations[resource, ok] += 1

    def registered(self, resource: str, is_registered: bool) -> None:
        self.registrations[resource] = is_registered

    def gpu(self, uuid: str, minor: int, healthy: bool) -> None:
        self.gpus[uuid] = (minor, healthy)

    def driver(self, problem: str | None) -> None:
        self.driver_problem = problem

    def binding(self, mode: str | None) -> None:
        self.binding_mode = mode

    def namespaces(self, work: bool | None) -> None:
        self.has_namespaces = work

    def tiers(self, tiers: Mapping[str, str], node: str | None) -> None:
        self.resource_tiers, self.node_tier = tiers, node

    def memory_limited(self, ok: bool) -> None:
        self.memory_limits[ok] += 1

    def forget(self, resource: str) -> None:
        self.counts.pop(resource, None)
        self.registrations.pop(resource, None)

    def forget_gpu(self, uuid: str) -> None:
        self.gpus.pop(uuid, None)

    def watching(self, is_watching: bool) -> None:
        self.is_watching = is_watching
        if not is_watching:
            self.container_memories, self.unattributed_processes = (), 0

    def container_memory(
        self, containers: Sequence[ContainerMemory], unattributed_processes: int
    ) -> None:
        self.container_memories = tuple(containers)
        self.unattributed_processes = unattributed_processes

    def memory_exceeded(self, gpu: str) -> None:
        self.violations[gpu] += 1

    def watchdog_acted(self, action: str, ok: bool) -> None:
        self.watchdog_actions[action, ok] += 1

    def why_not_ready(self) -> str | None:
        """None: the configuration is in force, the driver answers, every resource is registered.

        A node without resources is ready, because it would block a rollout otherwise.
        """
        return self.driver_problem or _why_not_ready(self.last_reload_ok, self.registrations)


def _why_not_ready(config_ok: bool | None, registrations: Mapping[str, bool]) -> str | None:
    if config_ok is None:
        return "the configuration is not loaded yet"
    if not config_ok:
        return "the configuration is invalid; the last good one is in force"
    missing = sorted(resource for resource, known in registrations.items() if not known)
    return f"not registered with the kubelet: {', '.join(missing)}" if missing else None
