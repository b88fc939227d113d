"""Applies plans: the agent's part in reconciling."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.load import Loaded
from gpuslice.config.settings import HealthSettings, Settings
from gpuslice.gpus.allocated_devices import list_version
from gpuslice.gpus.faults import Fault, fault_of
from gpuslice.gpus.inventory import Inventory
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.errors import NoGpus, ProgramError
from gpuslice.node.notices import config_notices
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.daemon_monitor import DaemonMonitor
from gpuslice.programs.agent.late_binder import LateBinder
from gpuslice.programs.agent.plan import AgentPlan, all_devices, check_directories, make_plan
from gpuslice.programs.agent.plugin_servers import PluginServers
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.rules import MigStrategy
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# Faults that the next plan confirms or ends. The others are reported by the driver.
_SUSPENDED = (Code.NODE_UNREADABLE, Code.TOO_FEW_DESCRIPTORS)
_FAULTS_OF_PLANS = (*_SUSPENDED, Code.GPU_CHANGED, Code.CDI_DEVICE_MISSING)

# How long the end of the agent waits for a plan that is being made.
_PLAN_SECONDS = 5.0
# A call that hangs is reported once, and ends by itself.
_KEPT_BY_RESET = (*_FAULTS_OF_PLANS, Code.DRIVER_NOT_RESPONDING)


class AgentTarget:
    """Implements `node.reconciler.Target`."""

    def __init__(
        self,
        driver: Driver,
        state: NodeState,
        servers: PluginServers,
        monitor: DaemonMonitor,
        binder: LateBinder,
        plan_again: Callable[[], None] = lambda: None,
    ) -> None:
        """`plan_again` is called after a plan that could be applied in part only."""
        self._plan_again = plan_again
        self._driver = driver
        self._state = state
        self._servers = servers
        self._monitor = monitor
        self._binder = binder
        self._watched: HealthSettings | None = None
        self._plan: AgentPlan | None = None
        # Directories with CDI specifications of ours, under any settings.
        self._cdi_directories: set[str] = set()
        # Held while specifications are written.
        self._cdi_lock = threading.Lock()
        self._stopped = False

    @property
    def awaited(self) -> tuple[Path, ...]:
        """Device nodes that are missing."""
        return () if self._plan is None else self._plan.awaited

    def list_changed(self) -> bool:
        """Whether the list of GPUs of a nested node differs from the one in force. Blocks."""
        plan = self._plan
        return plan is not None and list_version(plan.settings) != plan.list_version

    def needs_gpus(self, settings: Settings, problem: NoGpus | None) -> bool:
        del settings, problem
        return True

    def plan(self, settings: Settings, hardware: Hardware | None) -> AgentPlan:
        assert hardware is not None
        if not settings.containers.uses_cdi:
            return make_plan(settings, hardware)
        with self._cdi_lock:
            if self._stopped:
                raise ProgramError(Code.STOPPED, "the agent stops and removes its specifications")
            self._cdi_directories.add(settings.cdi.directory)
            return make_plan(settings, hardware)

    def check(self, plan: AgentPlan) -> None:
        check_directories(plan)
        self._servers.check(plan)

    async def apply(self, loaded: Loaded, plan: AgentPlan) -> None:
        self._plan = plan
        # First: no GPU is advertised before its errors are watched.
        if self._watched != plan.settings.health:
            self._watched = plan.settings.health
            await self._driver.watch_health(self._watched, _Reporter(self._state))
        self._state.publish(
            replace(
                self._state.current,
                settings=plan.settings,
                inventory=plan.inventory,
                pools=plan.pools,
                notices=(*config_notices(loaded), *plan.notices),
                faults=self._state.timed((*self._driver_faults(plan.inventory), *plan.faults)),
            )
        )
        self._monitor.apply(plan.daemons)
        self._binder.apply(plan.binding, plan.settings.cdi.directory)
        await self._servers.apply(plan)
        if plan.is_partial:
            self._plan_again()

    def suspend(self, problem: Problem, hardware: Hardware | None) -> None:
        """What is advertised stays; devices that are not as they were are unhealthy.

        If the hardware cannot be read, that is true for all devices.
        """
        if hardware is None:
            faults = [f for f in self._state.current.faults if f.code not in _SUSPENDED]
            self._state.replace_faults((*faults, Fault(problem.code, problem.message)))
            return
        lasting = self._driver_faults(hardware.inventory)
        self._state.replace_faults((*lasting, *self._changed_devices(hardware.inventory, problem)))

    def reset(self) -> None:
        """The driver is read again, and reports faults that persist again."""
        self._state.drop_faults(lambda fault: fault.code not in _KEPT_BY_RESET)

    def remove_cdi_specs(self) -> None:
        """At the end of the agent, if the settings ask for it. Blocks."""
        if self._plan is None or not self._plan.settings.cdi.remove_on_exit:
            return
        from gpuslice.cdi.bound_specs import BoundSpecs
        from gpuslice.cdi.store import CdiStore

        if self._plan.binding is not None and self._plan.binding.names_cdi:
            BoundSpecs(Path(self._plan.settings.cdi.directory)).collect()
        self._stopped = True
        # A plan continues in its thread after it is cancelled, and must not write afterwards.
        locked = self._cdi_lock.acquire(timeout=_PLAN_SECONDS)
        try:
            for directory in sorted(self._cdi_directories):
                CdiStore(Path(directory)).collect()
        finally:
            if locked:
                self._cdi_lock.release()

    def _changed_devices(self, inventory: Inventory, problem: Problem) -> Iterator[Fault]:
        settings = self._state.current.settings
        strategy = MigStrategy.NONE if settings is None else settings.rules.mig_strategy
        present = {device.uuid: device for device in all_devices(inventory, strategy)}
        for pool in self._state.current.pools:
            for device in (part.device for part in pool.parts):
                if present.get(device.uuid) != device:
                    yield fault_of(device, Code.GPU_CHANGED, problem.message)

    def _driver_faults(self, inventory: Inventory) -> list[Fault]:
        return [
            fault
            for fault in self._state.current.faults
            if fault.code not in _FAULTS_OF_PLANS and _lasts(fault, inventory)
        ]


def _lasts(fault: Fault, inventory: Inventory) -> bool:
    """Whether a fault outlives an enumeration.

    A GPU that left the node and comes back is a new one. A GPU that does not answer has not left.
    """
    silent = any(one.silent and one.mig_index is None for one in inventory.skipped)
    return silent or fault.gpu is None or any(fault.gpu == gpu.uuid for gpu in inventory.gpus)


class _Reporter:
    """Implements `gpus.health.HealthReporter`: passes reports on to the event loop."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()

    def unwatched(self, faults: tuple[Fault, ...]) -> None:
        self._on_loop(lambda: self._state.replace_faults_of(Code.GPU_NOT_WATCHED, faults))

    def fault(self, fault: Fault) -> None:
        self._on_loop(lambda: self._state.add_fault(fault))

    def notice(self, notice: Notice) -> None:
        self._on_loop(lambda: log.warning(notice.code, notice.message))

    def _on_loop(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(work)
