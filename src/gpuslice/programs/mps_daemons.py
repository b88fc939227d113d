"""`gpuslice mps` and `mps-control-daemon`: run the MPS control daemons of the node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import NodeEvents, NoEvents
from gpuslice.codes import Code
from gpuslice.config.load import Loaded
from gpuslice.config.settings import MpsNamespaces, Settings
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.gpus.allocated_devices import own_gpus
from gpuslice.gpus.inventory import Inventory
from gpuslice.mps.daemon_plan import DaemonPlan, plan_daemons, uses_mps
from gpuslice.mps.driver_support import has_namespaces
from gpuslice.mps.supervisor import Supervisor
from gpuslice.node.change_log import log_changes
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.errors import NoGpus, ProgramError
from gpuslice.node.event_recorder import EventRecorder
from gpuslice.node.hang_reporter import HangReporter
from gpuslice.node.notices import config_notices, skipped_gpus, user_notice
from gpuslice.node.reconciler import Reconciler
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.programs.api_server import connect_if_needed
from gpuslice.programs.hardware_scan import scan_for_changes
from gpuslice.programs.process import run_program, until_stopped
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.notice import Notice
from gpuslice.telemetry.http_server import metrics_at
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

_NO_INVENTORY = Inventory("", ())


def run_mps_daemons(
    load: Callable[[Path | None], Loaded], options: StartupOptions, timing: Timing
) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises ProgramError or ConfigError if the program cannot do its work.
    """
    program = MpsDaemons(load, options, timing)
    run_program(program.run(), program.hangs)


class MpsDaemons:
    def __init__(
        self, load: Callable[[Path | None], Loaded], options: StartupOptions, timing: Timing
    ) -> None:
        self._load = load
        self._options = options
        self._timing = timing
        self._triggers = Triggers()
        self._driver = Driver(timing)

    def hangs(self) -> bool:
        return self._driver.is_busy()

    async def run(self) -> None:
        # No time limit: MPS control daemons have their own.
        await until_stopped(self._serve(), self._triggers)
        log.info(Code.STOPPED, "stopped")

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            # Invalid configurations are events of the agent, and limits that somebody changed are
            # events of this program.
            api = connect_if_needed(self._options) if self._options.config_dir else None
            if api is not None:
                stack.push_async_callback(api.close)
            stack.push_async_callback(self._driver.close)
            # For the kubelet's probes: a process that hangs is restarted.
            metrics = await stack.enter_async_context(metrics_at(self._options.metrics_address))
            await self._work(api, metrics)

    async def _work(self, api: ApiServer | None, metrics: Metrics) -> None:
        events = NodeEvents(api, self._options.node_name or "") if api else NoEvents()
        recorder = EventRecorder(events)
        state = NodeState()
        state.subscribe(log_changes)
        HangReporter(self._driver, state, self._triggers)
        source = ConfigSource(self._options, api, state, metrics, self._timing)
        await source.first()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recorder.run())
            supervisor = Supervisor(
                tasks,
                self._timing,
                report=lambda code, message: recorder.add(Problem(code, message)),
            )
            reconciler = Reconciler(
                target=_Target(state, supervisor),
                load=lambda: self._load(source.current),
                driver=self._driver,
                state=state,
                triggers=self._triggers,
                metrics=metrics,
                retry_seconds=self._timing.retry,
                check_seconds=self._timing.config_check,
            )
            try:
                tasks.create_task(source.run(lambda: self._triggers.add(Trigger.SETTINGS)))
                await reconciler.start()
                tasks.create_task(
                    scan_for_changes(self._driver, self._triggers, self._timing.hardware_scan)
                )
                await reconciler.run()
            finally:
                await supervisor.stop()


@dataclass(frozen=True)
class _Plan:
    inventory: Inventory
    daemons: DaemonPlan
    notices: tuple[Notice, ...]


class _Target:
    """Implements `node.reconciler.Target`."""

    def __init__(self, state: NodeState, supervisor: Supervisor) -> None:
        self._state = state
        self._supervisor = supervisor

    def needs_gpus(self, settings: Settings, problem: NoGpus | None) -> bool:
        """A node that shares nothing by MPS needs no driver here."""
        del problem
        return uses_mps(settings)

    def plan(self, settings: Settings, hardware: Hardware | None) -> _Plan:
        if hardware is None:
            notice = Notice(Code.NOTHING_TO_RUN, _why_nothing(settings))
            return _Plan(_NO_INVENTORY, DaemonPlan(), (notice,))
        inventory = own_gpus(hardware.inventory, settings)
        found = catalogue(inventory.gpus, settings.rules, inventory.placeholders)
        # A GPU that belongs to another node now is present, and must be released.
        present = (gpu.uuid for gpu in hardware.inventory.gpus)
        version = hardware.inventory.driver_version
        namespaces = settings.mps_namespaces
        if namespaces is MpsNamespaces.REQUIRE and not has_namespaces(version):
            raise ProgramError(
                Code.MPS_NAMESPACES_UNAVAILABLE,
                f"mps-namespaces: require cannot be used: driver {version} has no namespaces of "
                "MPS; 615 and newer have them",
            )
        daemons = plan_daemons(found.pools, present, version, namespaces)
        skipped = skipped_gpus(inventory, settings.rules.mig_strategy)
        users = user_notice(found.pools, inventory.driver_version)
        return _Plan(inventory, daemons, (*skipped, *found.notices, *users))

    def check(self, plan: _Plan) -> None:
        """Nothing more to check."""

    async def apply(self, loaded: Loaded, plan: _Plan) -> None:
        self._state.publish(
            replace(
                self._state.current,
                settings=loaded.settings,
                inventory=plan.inventory,
                notices=(*config_notices(loaded), *plan.notices),
            )
        )
        await self._supervisor.apply(plan.daemons)

    def suspend(self, problem: Problem, hardware: Hardware | None) -> None:
        """Running daemons continue: their clients may still work."""

    def reset(self) -> None:
        """This program remembers no faults."""


def _why_nothing(settings: Settings) -> str:
    if settings.rules.memory is None:
        return "no resource is shared by MPS, nothing to run"
    mode = settings.memory_mps.mode
    return (
        f"nothing to run: mps-mode is {mode.value}; set it to managed, here and for the agent, to "
        "limit memory units"
    )
