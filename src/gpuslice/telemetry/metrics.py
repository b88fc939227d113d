"""What the agent tells of itself: counted here, shown by `exposition`, served by `probes`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol


class Metrics(Protocol):
    """Told by whoever knows. Callable from the event loop only."""

    def reloaded(self, ok: bool) -> None:
        """The configuration was read, at start or again."""

    def devices(self, resource: str, healthy: int, unhealthy: int) -> None: ...

    def in_use(self, resource: str, count: int | None) -> None:
        """How many devices containers hold; None: unknown."""

    def allocated(self, resource: str, ok: bool) -> None: ...

    def registered(self, resource: str, yes: bool) -> None: ...

    def gpu(self, uuid: str, minor: int, healthy: bool) -> None: ...

    def forget(self, resource: str) -> None:
        """The resource is no longer offered; what was counted of it stays."""

    def forget_gpu(self, uuid: str) -> None: ...


class NoMetrics:
    """Where nobody asks."""

    def reloaded(self, ok: bool) -> None:
        pass

    def devices(self, resource: str, healthy: int, unhealthy: int) -> None:
        pass

    def in_use(self, resource: str, count: int | None) -> None:
        pass

    def allocated(self, resource: str, ok: bool) -> None:
        pass

    def registered(self, resource: str, yes: bool) -> None:
        pass

    def gpu(self, uuid: str, minor: int, healthy: bool) -> None:
        pass

    def forget(self, resource: str) -> None:
        pass

    def forget_gpu(self, uuid: str) -> None:
        pass


class Recorder:
    """Plain figures, so that what is ready can be told without the metrics library."""

    def __init__(self) -> None:
        self.reloads: Counter[bool] = Counter({True: 0, False: 0})
        # None: the configuration was not read yet.
        self.last_reload_ok: bool | None = None
        self.last_good_reload: float | None = None
        # resource -> (healthy, unhealthy)
        self.offered: dict[str, tuple[int, int]] = {}
        self.used: dict[str, int] = {}
        self.allocations: Counter[tuple[str, bool]] = Counter()
        self.registrations: dict[str, bool] = {}
        # uuid -> (minor, healthy)
        self.gpus: dict[str, tuple[int, bool]] = {}

    def reloaded(self, ok: bool) -> None:
        self.reloads[ok] += 1
        self.last_reload_ok = ok
        if ok:
            self.last_good_reload = time.time()

    def devices(self, resource: str, healthy: int, unhealthy: int) -> None:
        self.offered[resource] = (healthy, unhealthy)
        self.registrations.setdefault(resource, False)

    def in_use(self, resource: str, count: int | None) -> None:
        if count is None:
            self.used.pop(resource, None)
        else:
            self.used[resource] = count

    def allocated(self, resource: str, ok: bool) -> None:
        self.allocations[resource, ok] += 1

    def registered(self, resource: str, yes: bool) -> None:
        self.registrations[resource] = yes

    def gpu(self, uuid: str, minor: int, healthy: bool) -> None:
        self.gpus[uuid] = (minor, healthy)

    def forget(self, resource: str) -> None:
        self.offered.pop(resource, None)
        self.registrations.pop(resource, None)
        self.used.pop(resource, None)

    def forget_gpu(self, uuid: str) -> None:
        self.gpus.pop(uuid, None)

    def why_not_ready(self) -> str | None:
        """None: the kubelet knows every resource, and they follow the configuration.

        A node without any resource is ready: it would hold up a rollout for ever otherwise.
        """
        return _why_not_ready(self.last_reload_ok, self.registrations)


def _why_not_ready(config_good: bool | None, registrations: Mapping[str, bool]) -> str | None:
    if config_good is None:
        return "the configuration was not read yet"
    if not config_good:
        return "the configuration is wrong; the last good one is in force"
    missing = sorted(resource for resource, yes in registrations.items() if not yes)
    return f"not registered with the kubelet: {', '.join(missing)}" if missing else None
