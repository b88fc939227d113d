"""The agent as a process: start, reconcile, stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import Events, EventType, NodeEvents, NoEvents, PodEvents
from gpuslice.cluster.pod_annotations import PodAnnotations
from gpuslice.cluster.pod_uid import pod_uid
from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.node.change_log import log_changes
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.driver import Driver
from gpuslice.node.event_recorder import EventRecorder
from gpuslice.node.hang_reporter import HangReporter
from gpuslice.node.reconciler import Reconciler
from gpuslice.node.state import NodeState
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.programs.agent.daemon_monitor import DaemonMonitor
from gpuslice.programs.agent.label_publisher import LabelPublisher
from gpuslice.programs.agent.late_binder import LateBinder
from gpuslice.programs.agent.list_watch import watch_list
from gpuslice.programs.agent.memory_limiter import MemoryLimiter
from gpuslice.programs.agent.metrics_reader import MetricsReader
from gpuslice.programs.agent.nested_file_collector import NestedFileCollector
from gpuslice.programs.agent.plan import AgentPlan
from gpuslice.programs.agent.plugin_servers import PluginServers
from gpuslice.programs.agent.pod_devices import PodDevicesReader
from gpuslice.programs.agent.pod_event_recorder import PodEventRecorder
from gpuslice.programs.agent.target import AgentTarget
from gpuslice.programs.agent.usage_tracker import UsageTracker
from gpuslice.programs.agent.watchdog import Watchdog
from gpuslice.programs.agent.watchdog_actions import WatchdogActions
from gpuslice.programs.api_server import connect_if_needed
from gpuslice.programs.hardware_scan import scan_for_changes
from gpuslice.programs.process import run_program, until_stopped
from gpuslice.slicing.thread_annotations import thread_annotations
from gpuslice.telemetry.http_server import metrics_at
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

# Loads the settings with this configuration file; None: with an empty one.
Load = Callable[[Path | None], Loaded]


def run_agent(load: Load, options: StartupOptions, timing: Timing) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises ProgramError or ConfigError if the agent cannot do its work.
    """
    agent = Agent(load, options, timing)
    run_program(agent.run(), agent.hangs)


class Agent:
    def __init__(self, load: Load, options: StartupOptions, timing: Timing) -> None:
        self._load = load
        self._options = options
        self._timing = timing
        self._triggers = Triggers()
        self._driver = Driver(timing)

    def hangs(self) -> bool:
        return self._driver.is_busy()

    async def run(self) -> None:
        await until_stopped(self._serve(), self._triggers, self._timing.stop)
        log.info(Code.STOPPED, "stopped")

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            metrics = await stack.enter_async_context(
                metrics_at(self._options.metrics_address, self._timing)
            )
            api = connect_if_needed(self._options)
            if api is not None:
                stack.push_async_callback(api.close)
            stack.push_async_callback(self._driver.close)
            await self._work(self._driver, api, metrics)

    async def _work(self, driver: Driver, api: ApiServer | None, metrics: Metrics) -> None:
        node_name = self._options.node_name or ""
        events = NodeEvents(api, node_name) if api else NoEvents()
        pod_events = PodEventRecorder(PodEvents(api, node_name) if api else None)
        state, timing = NodeState(), self._timing
        recorder = EventRecorder(events)
        for reader in (log_changes, MetricsReader(metrics).read, recorder.read):
            state.subscribe(reader)
        HangReporter(driver, state, self._triggers)
        source = ConfigSource(self._options, api, state, metrics, timing)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recorder.run())
            monitor = DaemonMonitor(tasks, state, timing)
            usage = UsageTracker(state, timing, lambda: _kubelet_socket(state))
            binder = LateBinder(state, timing, _pods(api, node_name))
            pods = PodDevicesReader(partial(pod_uid, api) if api is not None else None)
            limiter = MemoryLimiter(driver, state, metrics, timing, pods)
            servers = PluginServers(tasks, state, monitor, usage, binder, limiter, metrics, timing)
            target = AgentTarget(
                driver,
                state,
                servers,
                monitor,
                binder,
                lambda: self._triggers.add_later(Trigger.PLAN, timing.retry),
            )
            reconciler = Reconciler(
                target=target,
                load=lambda: self._load(source.current),
                driver=driver,
                state=state,
                triggers=self._triggers,
                metrics=metrics,
                retry_seconds=timing.retry,
                check_seconds=timing.config_check,
            )
            try:
                await self._start(source, reconciler, events, tasks)
                tasks.create_task(usage.run())
                tasks.create_task(binder.run())
                tasks.create_task(limiter.run())
                actions = WatchdogActions(api, pod_events, metrics, timing)
                watchdog = Watchdog(driver, state, metrics, actions, timing)
                tasks.create_task(pod_events.run())
                tasks.create_task(watchdog.run())
                tasks.create_task(NestedFileCollector(state, timing).run())
                tasks.create_task(LabelPublisher(self._options, api, driver, state).run())
                tasks.create_task(
                    scan_for_changes(
                        driver, self._triggers, timing.hardware_scan, lambda: target.awaited
                    )
                )
                tasks.create_task(
                    watch_list(target.list_changed, self._triggers, timing.hardware_scan)
                )
                await reconciler.run()
            finally:
                target.remove_cdi_specs()

    async def _start(
        self,
        source: ConfigSource,
        reconciler: Reconciler[AgentPlan],
        events: Events,
        tasks: asyncio.TaskGroup,
    ) -> None:
        try:
            await source.first()
            tasks.create_task(source.run(lambda: self._triggers.add(Trigger.SETTINGS)))
            await reconciler.start()
        except ConfigError as error:
            # The process ends, so nothing else records it.
            await events.record(Code.CONFIGURATION_INVALID, str(error), EventType.WARNING)
            raise


def _pods(api: ApiServer | None, node_name: str) -> PodAnnotations | None:
    return None if api is None else PodAnnotations(api, node_name, thread_annotations)


def _kubelet_socket(state: NodeState) -> str:
    settings = state.current.settings
    return "" if settings is None else settings.kubelet_socket
