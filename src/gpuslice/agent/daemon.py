"""The agent's life: start, run, reload, stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from gpuslice.agent.announce import announce_settings
from gpuslice.agent.api_server import api_server
from gpuslice.agent.driver import Driver
from gpuslice.agent.fleet import Fleet
from gpuslice.agent.labelling import Labelling
from gpuslice.agent.life import live, until_stopped
from gpuslice.agent.node_config import ConfigSource
from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.offering import Offering
from gpuslice.agent.wishes import Wish, Wishes
from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import Events, EventType, NodeEvents, NoEvents
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.settings import Settings
from gpuslice.config.startup_options import StartupOptions
from gpuslice.telemetry.http_server import metrics_at
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

_LOOK_FOR_CHANGES_SECONDS = 10.0

# Reads the settings, with this configuration file (None: with an empty one).
Load = Callable[[Path | None], Loaded]


def run_agent(load: Load, options: StartupOptions) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises AgentError or ConfigError if the agent cannot do its work.
    """
    live(Agent(load, options).run())


class Agent:
    def __init__(self, load: Load, options: StartupOptions) -> None:
        self._load = load
        self._options = options
        self._wishes = Wishes()

    async def run(self) -> None:
        await until_stopped(self._serve(), self._wishes)
        log.info("stopped")

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            metrics = await stack.enter_async_context(metrics_at(self._options.metrics_address))
            api = api_server(self._options)
            if api is not None:
                stack.push_async_callback(api.close)
            driver = Driver()
            stack.push_async_callback(driver.close)
            await self._work(driver, api, metrics)

    async def _work(self, driver: Driver, api: ApiServer | None, metrics: Metrics) -> None:
        events = NodeEvents(api, self._options.node_name or "") if api else NoEvents()
        source = ConfigSource(self._options, api, events, metrics)
        settings = await self._first_settings(source, events, metrics)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run(lambda: self._wishes.add(Wish.SETTINGS)))
            health = NodeHealth()
            offering = Offering(
                load=lambda: self._load(source.current),
                driver=driver,
                fleet=Fleet(tasks, health, metrics),
                health=health,
                labelling=Labelling(self._options, api, driver),
                events=events,
                metrics=metrics,
                wishes=self._wishes,
            )
            try:
                await offering.begin(settings)
                tasks.create_task(offering.labelling.run())
                tasks.create_task(self._look_for_changes(driver, offering))
                while True:
                    await offering.fulfil(await self._wishes.next())
            finally:
                offering.end()

    async def _first_settings(
        self, source: ConfigSource, events: Events, metrics: Metrics
    ) -> Settings:
        try:
            loaded = self._load(await source.first())
        except ConfigError as error:
            await events.record("ConfigurationInvalid", str(error), EventType.WARNING)
            raise
        metrics.reloaded(True)
        announce_settings("effective settings", loaded)
        return loaded.settings

    async def _look_for_changes(self, driver: Driver, offering: Offering) -> None:
        while True:
            await asyncio.sleep(_LOOK_FOR_CHANGES_SECONDS)
            appeared = (f"{node} appeared" for node in offering.awaited if node.exists())
            found = (*await driver.changes(), *appeared)
            if found:
                log.info("the node's GPUs changed", changes="; ".join(found))
                self._wishes.add(Wish.HARDWARE)
