"""The state of the node as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuslice.codes import Code
from gpuslice.config.settings import Settings
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.inventory import Inventory
from gpuslice.slicing.device import Device
from gpuslice.slicing.free_shares import part_to_advertise, shares_in_use
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.tiers import Enforcement, Tier, tier_of


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something does not work now."""

    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class DaemonState:
    """An MPS control daemon, as it answered the last probe."""

    # None: it answers.
    problem: Problem | None = None
    # Seconds since the epoch at which it last changed between answering and not answering.
    since: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """How containers get their limits now."""

    by_cdi: bool
    # Why not by CDI.
    reason: str = ""
    # Whether the settings ask for it.
    is_chosen: bool = False

    @property
    def mode(self) -> str:
        return "cdi" if self.by_cdi else "env"


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """Whether the driver limits the memory of containers by their cgroups now."""

    work: bool
    # Why not.
    reason: str = ""
    # Whether limits can be set, even if not all of them work.
    can_set: bool = False


@dataclass(frozen=True)
class Snapshot:
    """Everything that is known about the node. Readers never modify it."""

    # Each published snapshot has a higher one.
    generation: int = field(default=0, compare=False)
    # The settings in force; None: none yet.
    settings: Settings | None = None
    # Why the newest configuration is not in force.
    config_problems: tuple[Problem, ...] = ()
    inventory: Inventory = field(default_factory=lambda: Inventory("", ()))
    pools: tuple[Pool, ...] = ()
    # What an operator should know about settings and hardware.
    notices: tuple[Notice, ...] = ()
    faults: tuple[Fault, ...] = ()
    # MPS control daemons by name. One that is missing has not been probed.
    daemons: Mapping[str, DaemonState] = field(default_factory=dict)
    # None: no resource has limits, or this is not known yet.
    binding: Binding | None = None
    # Whether containers with slices are in namespaces of MPS; None: the settings rule it out.
    namespaces: bool | None = None
    # None: not known yet.
    driver_limits: DriverLimits | None = None
    # Whether the watchdog ends what exceeds its share; None: not known yet.
    watchdog_acts: bool | None = None
    # Device ids that containers hold, by resource; None: unknown.
    in_use: Mapping[str, frozenset[str]] | None = None

    def pool(self, resource: str) -> Pool | None:
        return next((pool for pool in self.pools if pool.resource == resource), None)

    @property
    def tiers(self) -> Mapping[str, Tier]:
        """How firmly limits hold, by resource. Empty while that is not known."""
        if self.driver_limits is None or self.watchdog_acts is None:
            return {}
        enforcement = Enforcement(self.watchdog_acts, self.driver_limits.work)
        found = ((pool.resource, tier_of(pool, enforcement)) for pool in self.pools)
        return {resource: tier for resource, tier in found if tier is not None}

    def gpu_faults(self, uuid: str) -> tuple[Fault, ...]:
        """A GPU is healthy if it has none."""
        return tuple(fault for fault in self.faults if fault.affects_gpu(uuid))

    def device_faults(self, device: Device) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.affects(device))

    def part_problems(self, part: Part) -> tuple[Problem, ...]:
        """Why the shares of a part are unhealthy. None: they are healthy."""
        problems = [Problem(f.code, f.message) for f in self.device_faults(part.device)]
        if part.daemon is not None:
            problem = self._daemon_problem(part.daemon)
            problems += [] if problem is None else [problem]
        return tuple(problems)

    def healthy(self, part: Part) -> bool:
        return not self.part_problems(part)

    def held_ids(self, pool: Pool) -> tuple[frozenset[str], ...] | None:
        """The device ids that containers hold, by position in `pool.parts`. None: unknown."""
        if self.in_use is None:
            return None
        return shares_in_use(pool, self.in_use.get(pool.resource, frozenset()))

    def advertised_ids(self, pool: Pool) -> tuple[frozenset[str] | None, ...]:
        """By position in `pool.parts`: the ids that are advertised; None: all of them.

        The others are healthy, but free shares that a pod cannot use together are held back.
        """
        held = self.held_ids(pool) if pool.advertises_one_gpu else None
        if held is None:
            return (None,) * len(pool.parts)
        healthy = [self.healthy(part) for part in pool.parts]
        free = [part.count - len(ids) for part, ids in zip(pool.parts, held, strict=True)]
        chosen = part_to_advertise(free, healthy)
        return tuple(None if position == chosen else ids for position, ids in enumerate(held))

    def _daemon_problem(self, name: str) -> Problem | None:
        state = self.daemons.get(name)
        if state is None:
            return Problem(Code.MPS_UNAVAILABLE, f"MPS control daemon {name} was not probed yet")
        return state.problem
