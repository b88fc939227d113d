"""`gpuslice labels` and `gpu-feature-discovery`: labels the node with its GPUs and resources."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.settings import LABEL_DEFAULTS, LabelSettings, Settings
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.gpus.allocated_devices import own_gpus
from gpuslice.gpus.inventory import Inventory, Platform
from gpuslice.gpus.nvml import Nvml
from gpuslice.labels.collect import collect_labels
from gpuslice.labels.errors import LabelsError, NodeUnreadable
from gpuslice.labels.label_options import LabelTarget
from gpuslice.labels.publish_loop import publish
from gpuslice.labels.publishers import (
    Destination,
    Labels,
    NodeLabels,
    Publisher,
    publisher_for,
)
from gpuslice.node.change_log import log_changes
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.errors import DriverFailed, NoDriver, NoGpus, ProgramError
from gpuslice.node.hang_reporter import HangReporter
from gpuslice.node.notices import config_notices
from gpuslice.node.reconciler import Reconciler
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.programs.process import run_program, until_stopped
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Pool
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import NoMetrics

if TYPE_CHECKING:
    from gpuslice.cluster.client import ApiServer

log = Logger(__name__)

_NO_GPUS = Inventory("", ())


def run_feature_discovery(
    load: Callable[[Path | None], Loaded],
    options: StartupOptions,
    target: LabelTarget,
    timing: Timing,
) -> None:
    """Publishes once, or runs until SIGTERM or SIGINT.

    Raises ProgramError or ConfigError if the program cannot do its work.
    """
    program = FeatureDiscovery(load, options, target, timing)
    run_program(program.run(), program.hangs)


class FeatureDiscovery:
    def __init__(
        self,
        load: Callable[[Path | None], Loaded],
        options: StartupOptions,
        target: LabelTarget,
        timing: Timing,
    ) -> None:
        self._load = load
        self._options = options
        self._target = target
        self._timing = timing
        self._triggers = Triggers()
        self._driver = Driver(timing)

    def hangs(self) -> bool:
        return self._driver.is_busy()

    async def run(self) -> None:
        await until_stopped(self._work(), self._triggers, self._timing.stop)

    async def _work(self) -> None:
        state, metrics, driver = NodeState(), NoMetrics(), self._driver
        state.subscribe(log_changes)
        HangReporter(driver, state, self._triggers)
        source = ConfigSource(self._options, None, state, metrics, self._timing)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(driver.close)
            publishers = Publishers(self._target)
            stack.push_async_callback(publishers.close)
            labels = DiscoveryTarget(publishers, driver, state, self._triggers)

            def load() -> Loaded:
                loaded = self._load(source.current)
                # Options that name no place to publish are reported even without a driver.
                publishers.get(loaded.settings.labels)
                return loaded

            reconciler = Reconciler(
                target=labels,
                load=load,
                driver=driver,
                state=state,
                triggers=self._triggers,
                metrics=metrics,
                retry_seconds=self._timing.retry,
                check_seconds=self._timing.config_check,
            )
            await source.first()
            await reconciler.start()
            if labels.settings.oneshot:
                return
            stack.push_async_callback(labels.withdraw)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(source.run(self._rescan))
                await reconciler.run()

    def _rescan(self) -> None:
        """NVML is closed between publications, so each of them enumerates the GPUs again."""
        self._triggers.add(Trigger.SETTINGS)
        self._triggers.add(Trigger.HARDWARE)


class Publishers:
    """The publisher of each destination, and the connection to the API server if one needs it."""

    def __init__(self, target: LabelTarget) -> None:
        self._target = target
        self._server: ApiServer | None = None
        self._publishers: dict[Destination, Publisher] = {}

    def get(self, settings: LabelSettings) -> Publisher:
        """Raises ConfigError if labels cannot be published there."""
        target = self._target
        destination = Destination(
            target.mode_for(settings),
            settings.output_file,
            target.node_name,
            target.namespace,
            target.pod_name,
        )
        if destination not in self._publishers:
            self._publishers[destination] = publisher_for(destination, self._api)
        return self._publishers[destination]

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    def _api(self) -> NodeLabels:
        from gpuslice.cluster.client import connect
        from gpuslice.cluster.errors import ClusterError
        from gpuslice.cluster.labels import ClusterLabels

        kubeconfig = self._target.kubeconfig
        if self._server is None:
            try:
                self._server = connect(kubeconfig)
            except ClusterError as error:
                raise ConfigError("kubeconfig", str(kubeconfig or ""), str(error)) from error
        return ClusterLabels(self._server)


@dataclass(frozen=True)
class LabelPlan:
    inventory: Inventory
    # None: the rules do not fit the node.
    pools: tuple[Pool, ...] | None
    publisher: Publisher
    notices: tuple[Notice, ...] = ()


class DiscoveryTarget:
    """Implements `node.reconciler.Target`: the plan is what to label, applying it publishes."""

    def __init__(
        self, publishers: Publishers, driver: Driver, state: NodeState, triggers: Triggers
    ) -> None:
        self._publishers = publishers
        self._driver = driver
        self._state = state
        self._triggers = triggers
        self._publisher: Publisher | None = None
        self._loaded: Loaded | None = None
        # When the settings were read.
        self._timestamp = 0

    @property
    def settings(self) -> LabelSettings:
        return LABEL_DEFAULTS if self._loaded is None else self._loaded.settings.labels

    def needs_gpus(self, settings: Settings, problem: NoGpus | None) -> bool:
        """A node without GPUs gets labels that say so. A driver that fails changes no label."""
        if isinstance(problem, NoDriver):
            return settings.fail_on_init_error
        return problem is None or isinstance(problem, DriverFailed)

    def plan(self, settings: Settings, hardware: Hardware | None) -> LabelPlan:
        publisher = self._publishers.get(settings.labels)
        if hardware is None:
            return LabelPlan(_NO_GPUS, (), publisher)
        if hardware.inventory.platform is not Platform.NVML:
            # Placeholders have no properties: `collect_labels` reads the GPUs behind them.
            return LabelPlan(hardware.inventory, (), publisher)
        inventory = own_gpus(hardware.inventory, settings)
        try:
            found = catalogue(inventory.gpus, settings.rules)
        except SlicingError as error:
            # The agent reports the same, and advertises nothing. The labels show it.
            notice = Notice(error.code, f"the rules do not fit this node: {error}")
            return LabelPlan(inventory, None, publisher, (notice,))
        return LabelPlan(inventory, found.pools, publisher)

    def check(self, plan: LabelPlan) -> None:
        """Nothing more to check."""

    async def apply(self, loaded: Loaded, plan: LabelPlan) -> None:
        if loaded is not self._loaded:
            self._timestamp = int(time.time())
        await self._publish(loaded.settings, plan)
        before, self._publisher = self._publisher, plan.publisher
        if before is not None and before is not plan.publisher:
            await _withdraw(before)
        self._loaded = loaded
        self._state.publish(
            replace(
                self._state.current,
                settings=loaded.settings,
                inventory=plan.inventory,
                notices=(*config_notices(loaded), *plan.notices),
            )
        )
        if self.settings.sleep_seconds is not None:
            self._triggers.add_later(Trigger.HARDWARE, self.settings.sleep_seconds)

    async def withdraw(self) -> None:
        """At the end, unless labels are published once only."""
        if self._publisher is not None and self.settings.sleep_seconds is not None:
            await _withdraw(self._publisher)

    def suspend(self, problem: Problem, hardware: Hardware | None) -> None:
        """Published labels stay."""

    def reset(self) -> None:
        """This program remembers no faults."""

    async def _publish(self, settings: Settings, plan: LabelPlan) -> None:
        timestamp = None if settings.labels.no_timestamp else self._timestamp
        inventory = plan.inventory

        def collect(nvml: Nvml | None) -> Labels:
            if nvml is None and inventory.gpus:
                raise NodeUnreadable("the NVIDIA driver is closed")
            return collect_labels(
                nvml, inventory.platform, inventory.gpus, plan.pools, settings, timestamp
            )

        try:
            labels = await self._driver.read(collect)
            await publish(labels, plan.publisher)
            # Last: if publishing fails, the next attempt reads from the driver again.
            await self._driver.close()
        except LabelsError as error:
            raise ProgramError(Code.LABELS_OUTDATED, str(error)) from error


async def _withdraw(publisher: Publisher) -> None:
    try:
        await publisher.withdraw()
    except LabelsError as error:
        log.warning(Code.LABELS_NOT_REMOVED, "cannot remove labels", reason=error)
