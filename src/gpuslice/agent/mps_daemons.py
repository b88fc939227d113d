"""The life of `mps-control-daemon`: from settings and GPUs to the MPS daemons of the node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from gpuslice.agent.announce import announce_settings
from gpuslice.agent.api_server import api_server
from gpuslice.agent.driver import Driver, NoGpus
from gpuslice.agent.errors import AgentError
from gpuslice.agent.life import live, until_stopped
from gpuslice.agent.node_config import ConfigSource
from gpuslice.agent.outlook import finds_otherwise, waits
from gpuslice.agent.plan import Node
from gpuslice.agent.wishes import Wish, Wishes
from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import NoEvents
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.settings import Settings
from gpuslice.config.startup_options import StartupOptions
from gpuslice.gpus.allocated_devices import own_part
from gpuslice.mps.daemon_plan import MpsPlan, plan_daemons, shares_by_mps
from gpuslice.mps.supervisor import Supervisor
from gpuslice.slicing.errors import NothingToOffer, SlicingError
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import NoMetrics

log = Logger(__name__)

_RETRY_SECONDS = 5.0
_LOOK_FOR_CHANGES_SECONDS = 10.0
_WAITING = "waiting for GPUs"
_KEEPING_SETTINGS = "keeping the last good settings"
_KEEPING_DAEMONS = "keeping the daemons as they are"


def keep_mps_daemons(load: Callable[[Path | None], Loaded], options: StartupOptions) -> None:
    """Runs until SIGTERM or SIGINT. Raises AgentError or ConfigError if it cannot do its work."""
    live(MpsDaemons(load, options).run())


class MpsDaemons:
    def __init__(self, load: Callable[[Path | None], Loaded], options: StartupOptions) -> None:
        self._load = load
        self._options = options
        self._wishes = Wishes()
        self._driver = Driver()
        self._node: Node | None = None
        self._plan: MpsPlan | None = None
        # What was said last of each kind of trouble.
        self._complaints: dict[str, str] = {}

    async def run(self) -> None:
        await until_stopped(self._serve(), self._wishes)
        log.info("stopped")

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            # The agent of the node tells events; of this program only the label is needed.
            api = api_server(self._options) if self._options.config_dir else None
            if api is not None:
                stack.push_async_callback(api.close)
            stack.push_async_callback(self._driver.close)
            await self._work(api)

    async def _work(self, api: ApiServer | None) -> None:
        source = ConfigSource(self._options, api, NoEvents(), NoMetrics())
        loaded = self._load(await source.first())
        announce_settings("settings", loaded)
        async with asyncio.TaskGroup() as tasks:
            supervisor = Supervisor(tasks)
            try:
                tasks.create_task(source.run(lambda: self._wishes.add(Wish.SETTINGS)))
                settings = await self._begin(loaded.settings, source, supervisor)
                tasks.create_task(self._look_for_changes())
                while True:
                    wishes = await self._wishes.next()
                    settings = await self._follow(wishes, settings, source, supervisor)
            finally:
                await supervisor.stop()

    async def _begin(
        self, settings: Settings, source: ConfigSource, supervisor: Supervisor
    ) -> Settings:
        """Waits for GPUs if the settings say so, and hears of new settings meanwhile."""
        while True:
            try:
                plan = await self._planned(settings, look_again=True)
            except (NoGpus, NothingToOffer) as problem:
                if not waits(settings, problem):
                    raise AgentError(str(problem)) from problem
                self._complain(_WAITING, problem)
            except SlicingError as error:
                raise AgentError(str(error)) from error
            else:
                await self._apply(plan, supervisor)
                return settings
            if await self._wishes.within(_RETRY_SECONDS):
                loaded = self._reloaded(source)
                if loaded is not None:
                    self._accept(loaded, settings)
                    settings = loaded.settings

    async def _follow(
        self,
        wishes: frozenset[Wish],
        last_good: Settings,
        source: ConfigSource,
        supervisor: Supervisor,
    ) -> Settings:
        """The settings in force from now on; whatever is wrong leaves the last good ones so."""
        loaded = self._reloaded(source)
        wished = last_good if loaded is None else loaded.settings
        look_again = bool(wishes & {Wish.BEGIN_ANEW, Wish.HARDWARE})
        try:
            settings, plan = await self._try(wished, last_good, look_again=look_again)
        except (NoGpus, SlicingError) as problem:
            self._complain(_KEEPING_DAEMONS, problem)
            self._wishes.add_later(Wish.SETTINGS, _RETRY_SECONDS)
            return last_good
        if loaded is not None and settings == loaded.settings:
            self._accept(loaded, last_good)
        await self._apply(plan, supervisor)
        log.info("reloaded", resources=",".join(d.resource for d in plan.daemons) or "none")
        return settings

    async def _try(
        self, settings: Settings, last_good: Settings, *, look_again: bool
    ) -> tuple[Settings, MpsPlan]:
        """What the settings make of the node, or what the last good ones do if these fail."""
        elsewhere = finds_otherwise(settings, last_good)
        try:
            return settings, await self._planned(settings, look_again=look_again or elsewhere)
        except (NoGpus, SlicingError) as error:
            # A node without GPUs is not the fault of settings that look where the last ones did.
            if settings == last_good or (isinstance(error, NoGpus) and not elsewhere):
                raise
            self._complain(_KEEPING_SETTINGS, error)
        return last_good, await self._planned(last_good, look_again=elsewhere)

    async def _planned(self, settings: Settings, *, look_again: bool) -> MpsPlan:
        """A node that shares nothing by MPS needs no driver here."""
        if not shares_by_mps(settings):
            self._node = None
            await self._driver.close()
            return MpsPlan()
        if look_again or self._node is None:
            self._node = None
            self._node = await self._driver.enumerate(settings)
        inventory = self._node.inventory
        own = await asyncio.to_thread(own_part, inventory, settings)
        return plan_daemons(settings, own, inventory)

    async def _apply(self, plan: MpsPlan, supervisor: Supervisor) -> None:
        self._complaints.pop(_WAITING, None)
        self._complaints.pop(_KEEPING_DAEMONS, None)
        if plan != self._plan:
            self._plan = plan
            for note in plan.notes:
                log.warning(note)
            if not plan.daemons:
                log.info("nothing is shared by MPS here: waiting for settings that say otherwise")
        await supervisor.apply(plan)

    def _reloaded(self, source: ConfigSource) -> Loaded | None:
        """None if they are wrong, which is then told."""
        try:
            return self._load(source.current)
        except ConfigError as error:
            self._complain(_KEEPING_SETTINGS, error)
            return None

    def _accept(self, loaded: Loaded, before: Settings) -> None:
        """Told only now: settings that the node refuses are never in force."""
        refused = self._complaints.pop(_KEEPING_SETTINGS, None)
        if loaded.settings != before or refused:
            announce_settings("settings", loaded)

    def _complain(self, event: str, problem: Exception) -> None:
        if str(problem) != self._complaints.get(event):
            self._complaints[event] = str(problem)
            log.error(event, reason=problem)

    async def _look_for_changes(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_FOR_CHANGES_SECONDS)
            if found := await self._driver.changes():
                log.info("the node's GPUs changed", changes="; ".join(found))
                self._wishes.add(Wish.HARDWARE)
