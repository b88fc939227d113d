"""The life of `mps-control-daemon`: from settings and GPUs to the MPS daemons of the node."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from gpuslice.agent.api_server import api_server
from gpuslice.agent.driver import Driver, NoDriver, NoGpus
from gpuslice.agent.errors import AgentError
from gpuslice.agent.life import live
from gpuslice.agent.node_config import ConfigSource
from gpuslice.agent.wishes import Wish, Wishes
from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import NoEvents
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.options import AgentOptions
from gpuslice.config.settings import Settings
from gpuslice.gpus.allotment import own_part
from gpuslice.mps.plan import MpsPlan, plan_daemons, shares_by_mps
from gpuslice.mps.supervisor import Supervisor
from gpuslice.slicing.errors import NothingToOffer, SlicingError
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import NoMetrics
from gpuslice.telemetry.stacks import dump_stacks

log = Logger(__name__)

_RETRY_SECONDS = 5.0
_LOOK_FOR_CHANGES_SECONDS = 10.0


def keep_mps_daemons(load: Callable[[Path | None], Loaded], options: AgentOptions) -> None:
    """Runs until SIGTERM or SIGINT. Raises AgentError or ConfigError if it cannot do its work."""
    live(MpsDaemons(load, options).run())


class MpsDaemons:
    def __init__(self, load: Callable[[Path | None], Loaded], options: AgentOptions) -> None:
        self._load = load
        self._options = options
        self._stop = asyncio.Event()
        self._wishes = Wishes()
        self._driver = Driver()
        self._settings: Settings | None = None
        self._plan: MpsPlan | None = None
        self._complaint = ""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._wishes.add, Wish.BEGIN_ANEW)
        loop.add_signal_handler(signal.SIGQUIT, dump_stacks)
        async with contextlib.AsyncExitStack() as stack:
            # The agent of the node tells events; of this program only the label is needed.
            api = api_server(self._options) if self._options.config_dir else None
            if api is not None:
                stack.push_async_callback(api.close)
            stack.push_async_callback(self._driver.close)
            work = asyncio.create_task(self._work(api))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        log.info("stopped")

    async def _work(self, api: ApiServer | None) -> None:
        source = ConfigSource(self._options, api, NoEvents(), NoMetrics())
        settings = self._told(self._load(await source.first()))
        async with asyncio.TaskGroup() as tasks:
            supervisor = Supervisor(tasks)
            try:
                tasks.create_task(source.run(lambda: self._wishes.add(Wish.SETTINGS)))
                await self._begin(settings, source, supervisor)
                tasks.create_task(self._look_for_changes())
                while True:
                    await self._wishes.next()
                    await self._follow(source, supervisor)
            finally:
                await supervisor.stop()

    async def _begin(
        self, settings: Settings, source: ConfigSource, supervisor: Supervisor
    ) -> None:
        """Waits for GPUs if the settings say so, and hears of new settings meanwhile."""
        while True:
            try:
                plan = await self._planned(settings)
            except (NoGpus, NothingToOffer) as problem:
                if isinstance(problem, NoDriver) and settings.fail_on_init_error:
                    raise AgentError(str(problem)) from problem
                self._complain("waiting for GPUs", problem)
            except SlicingError as error:
                raise AgentError(str(error)) from error
            else:
                await self._apply(plan, supervisor)
                return
            if await self._wishes.within(_RETRY_SECONDS):
                settings = self._reloaded(source) or settings

    async def _follow(self, source: ConfigSource, supervisor: Supervisor) -> None:
        """Whatever is wrong leaves the daemons that run as they are."""
        settings = self._reloaded(source)
        if settings is None:
            return
        try:
            plan = await self._planned(settings)
        except (NoGpus, SlicingError, AgentError) as problem:
            self._complain("keeping the daemons as they are", problem)
            self._wishes.add_later(Wish.HARDWARE, _RETRY_SECONDS)
        else:
            await self._apply(plan, supervisor)
            log.info("reloaded", resources=",".join(d.resource for d in plan.daemons) or "none")

    async def _planned(self, settings: Settings) -> MpsPlan:
        """A node that shares nothing by MPS needs no driver here."""
        if not shares_by_mps(settings):
            return MpsPlan()
        seen = await self._driver.enumerate(settings)
        return plan_daemons(settings, await asyncio.to_thread(own_part, seen.inventory, settings))

    async def _apply(self, plan: MpsPlan, supervisor: Supervisor) -> None:
        self._complaint = ""
        if plan != self._plan:
            self._plan = plan
            for note in plan.notes:
                log.warning(note)
            if not plan.daemons:
                log.info("nothing is shared by MPS here: waiting for settings that say otherwise")
        await supervisor.apply(plan)

    def _reloaded(self, source: ConfigSource) -> Settings | None:
        try:
            return self._told(self._load(source.current))
        except ConfigError as error:
            self._complain("keeping the daemons as they are", error)
            return None

    def _told(self, loaded: Loaded) -> Settings:
        if loaded.settings != self._settings:
            self._settings = loaded.settings
            log.info("settings", **loaded.settings.describe())
            for warning in loaded.warnings:
                log.warning(warning)
        return loaded.settings

    def _complain(self, event: str, problem: Exception) -> None:
        if str(problem) != self._complaint:
            self._complaint = str(problem)
            log.error(event, reason=problem)

    async def _look_for_changes(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_FOR_CHANGES_SECONDS)
            if found := await self._driver.changes():
                log.info("the node's GPUs changed", changes="; ".join(found))
                self._wishes.add(Wish.HARDWARE)
