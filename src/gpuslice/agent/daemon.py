"""The agent's life: start, run, reload, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuslice.agent.announce import announce
from gpuslice.agent.api_server import api_server
from gpuslice.agent.assembly import Assembled, assemble, withdraw
from gpuslice.agent.driver import Driver, DriverReplaced, NoDriver, NoGpus
from gpuslice.agent.errors import AgentError
from gpuslice.agent.fleet import Fleet
from gpuslice.agent.labelling import Labelling
from gpuslice.agent.node_config import ConfigSource
from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.plan import Node
from gpuslice.agent.wishes import Wish, Wishes
from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.events import Events, EventType, NodeEvents, NoEvents
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.options import AgentOptions
from gpuslice.config.settings import Settings
from gpuslice.gpus.health import Trouble
from gpuslice.kubelet.endpoint import EndpointError
from gpuslice.slicing.errors import NothingToOffer, SlicingError
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics
from gpuslice.telemetry.probes import metrics_at
from gpuslice.telemetry.stacks import dump_stacks

log = Logger(__name__)

_RETRY_SECONDS = 5.0
_LOOK_FOR_CHANGES_SECONDS = 10.0

# Reads the settings, with this configuration file (None: with an empty one).
Load = Callable[[Path | None], Loaded]


def run_agent(load: Load, options: AgentOptions) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises AgentError or ConfigError if the agent cannot do its work.
    """
    failure: BaseException | None = None
    try:
        asyncio.run(Agent(load, options).run())
    except* (AgentError, EndpointError, DriverReplaced) as failures:
        failure = AgentError("; ".join(str(error) for error in _leaves(failures)))
    except* ConfigError as failures:
        failure = next(_leaves(failures))
    # Not raised from within, where Python 3.11.2 would wrap it in a group.
    if failure is not None:
        raise failure


class Agent:
    def __init__(self, load: Load, options: AgentOptions) -> None:
        self._load = load
        self._options = options
        self._stop = asyncio.Event()
        self._wishes = Wishes()

    async def run(self) -> None:
        self._handle_signals()
        async with contextlib.AsyncExitStack() as stack:
            metrics = await stack.enter_async_context(metrics_at(self._options.metrics_address))
            api = api_server(self._options)
            if api is not None:
                stack.push_async_callback(api.close)
            driver = Driver()
            stack.push_async_callback(driver.close)
            work = asyncio.create_task(self._work(driver, api, metrics))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        log.info("stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._wishes.add, Wish.BEGIN_ANEW)
        loop.add_signal_handler(signal.SIGQUIT, dump_stacks)

    async def _work(self, driver: Driver, api: ApiServer | None, metrics: Metrics) -> None:
        events = NodeEvents(api, self._options.node_name or "") if api else NoEvents()
        source = ConfigSource(self._options, api, events, metrics)
        settings = await self._first_settings(source, events, metrics)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run(lambda: self._wishes.add(Wish.SETTINGS)))
            health = NodeHealth()
            offering = _Offering(
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
        _tell("effective settings", loaded)
        return loaded.settings

    async def _look_for_changes(self, driver: Driver, offering: _Offering) -> None:
        while True:
            await asyncio.sleep(_LOOK_FOR_CHANGES_SECONDS)
            appeared = (f"{node} appeared" for node in offering.awaited if node.exists())
            found = (*await driver.changes(), *appeared)
            if found:
                log.info("the node's GPUs changed", changes="; ".join(found))
                self._wishes.add(Wish.HARDWARE)


class _Offering:
    """What the node offers now, and how that follows settings and hardware."""

    def __init__(
        self,
        *,
        load: Callable[[], Loaded],
        driver: Driver,
        fleet: Fleet,
        health: NodeHealth,
        labelling: Labelling,
        events: Events,
        metrics: Metrics,
        wishes: Wishes,
    ) -> None:
        self._load = load
        self._driver = driver
        self._fleet = fleet
        self._health = health
        self.labelling = labelling
        self._events = events
        self._metrics = metrics
        self._wishes = wishes
        self._settings: Settings | None = None
        self._node: Node | None = None
        self._watched: object = None
        self._gpus: frozenset[str] = frozenset()
        self._complaint = ""
        # Device nodes that are missing; see Assembled.
        self.awaited: tuple[Path, ...] = ()

    async def begin(self, settings: Settings) -> None:
        """Waits for GPUs if the settings say so, and hears of new settings meanwhile."""
        told = ""
        while True:
            try:
                self._node = await self._driver.enumerate(settings)
                assembled = await asyncio.to_thread(assemble, settings, self._node)
                break
            except (NoGpus, NothingToOffer) as problem:
                if not _waits(settings, problem):
                    raise AgentError(str(problem)) from problem
                if str(problem) != told:
                    told = str(problem)
                    log.error("waiting for GPUs", reason=told, retry_seconds=_RETRY_SECONDS)
            except SlicingError as error:
                raise AgentError(str(error)) from error
            if await self._wishes.within(_RETRY_SECONDS):
                settings = await self._load_again(settings)
        await self._apply(assembled)

    async def fulfil(self, wishes: frozenset[Wish]) -> None:
        """Checks everything first; whatever is wrong leaves what was last good in force."""
        assert self._settings is not None
        settings = self._settings
        if Wish.BEGIN_ANEW in wishes:
            # Now and not at the end: what befalls a GPU meanwhile is news.
            self._health.clear()
        if wishes & {Wish.BEGIN_ANEW, Wish.SETTINGS}:
            settings = await self._load_again(settings)
        look_again = bool(wishes & {Wish.BEGIN_ANEW, Wish.HARDWARE})
        try:
            assembled = await self._try(settings, self._settings, look_again=look_again)
        except (NoGpus, SlicingError, AgentError) as problem:
            log.error("no GPUs to offer, trying again", reason=problem, seconds=_RETRY_SECONDS)
            self._health.suspend()
            self._fleet.refresh()
            self._node = None
            self._wishes.add_later(Wish.SETTINGS, _RETRY_SECONDS)
            return
        self._health.resume()
        await self._apply(assembled)
        log.info("reloaded", resources=",".join(sorted(assembled.plans)))

    def end(self) -> None:
        if self._settings is not None:
            withdraw(self._settings)

    async def _enumerate(self, settings: Settings) -> Node:
        assert self._settings is not None
        self._watched = None
        node = await self._driver.enumerate(settings)
        # At once, since nobody has watched the GPUs while the driver was opened anew.
        await self._watch(self._settings)
        return node

    async def _try(self, settings: Settings, last_good: Settings, *, look_again: bool) -> Assembled:
        """What the settings make of the node, or what the last good ones do if these fail."""
        elsewhere = _finds_otherwise(settings, last_good)
        try:
            assembled = await self._assemble(settings, look_again=look_again or elsewhere)
        except (NoGpus, SlicingError, AgentError) as error:
            # A node without GPUs is not the fault of settings that look where the last ones did.
            if settings == last_good or (isinstance(error, NoGpus) and not elsewhere):
                raise
            await self._complain(str(error))
            return await self._assemble(last_good, look_again=elsewhere)
        if settings != last_good:
            self._complaint = ""
            self._metrics.reloaded(True)
        return assembled

    async def _assemble(self, settings: Settings, *, look_again: bool) -> Assembled:
        if look_again or self._node is None:
            self._node = None
            self._node = await self._enumerate(settings)
        return await asyncio.to_thread(assemble, settings, self._node)

    async def _load_again(self, last_good: Settings) -> Settings:
        try:
            loaded = self._load()
        except ConfigError as error:
            await self._complain(str(error))
            return last_good
        if loaded.settings != last_good or self._complaint:
            _tell("new settings", loaded)
        if loaded.settings == last_good:
            self._complaint = ""
            self._metrics.reloaded(True)
        return loaded.settings

    async def _complain(self, problem: str) -> None:
        log.error("keeping the last good settings", reason=problem)
        self._metrics.reloaded(False)
        if problem != self._complaint:
            self._complaint = problem
            await self._events.record("ConfigurationInvalid", problem, EventType.WARNING)

    async def _apply(self, assembled: Assembled) -> None:
        settings, inventory = assembled.settings, assembled.node.inventory
        before, self._settings = self._settings, settings
        if before is not None and before.memory.unit != settings.memory.unit:
            log.warning("the memory unit changed: pods that run keep what they hold by the old one")
        announce(assembled)
        if not any(left.silent and left.mig_index is None for left in inventory.left_out):
            # A GPU that does not answer is not gone, and its trouble is not over.
            self._health.forget_absent({gpu.uuid for gpu in inventory.gpus})
        # First, so that no GPU is on offer while nobody would hear of its errors.
        if self._watched != settings.health:
            await self._watch(settings)
        await self._fleet.apply(assembled.plans, settings.kubelet_socket)
        self._count_gpus(assembled)
        self.labelling.describe(assembled)
        self.awaited = assembled.awaited

    async def _watch(self, settings: Settings) -> None:
        self._watched = settings.health
        self._health.begin_watch()
        loop = asyncio.get_running_loop()

        def report(trouble: Trouble) -> None:
            loop.call_soon_threadsafe(self._mark, trouble)

        def note(text: str) -> None:
            loop.call_soon_threadsafe(log.warning, text)

        await self._driver.watch_health(settings.health, report, note)
        self._fleet.refresh()

    def _mark(self, trouble: Trouble) -> None:
        if not self._health.add(trouble):
            return
        self._fleet.refresh()
        place = {
            "gpu_instance": trouble.gpu_instance,
            "compute_instance": trouble.compute_instance,
        }
        log.error(
            "a GPU became unhealthy",
            uuid=trouble.uuid or "all",
            reason=trouble.reason,
            **{name: number for name, number in place.items() if number is not None},
        )
        self._count_health()

    def _count_gpus(self, assembled: Assembled) -> None:
        now = frozenset(gpu.uuid for gpu in assembled.node.inventory.gpus)
        for uuid in self._gpus - now:
            self._metrics.forget_gpu(uuid)
        self._gpus = now
        self._count_health()

    def _count_health(self) -> None:
        if self._node is not None:
            for gpu in self._node.inventory.gpus:
                if gpu.uuid in self._gpus:
                    self._metrics.gpu(gpu.uuid, gpu.minor, self._health.healthy_gpu(gpu.uuid))


def _waits(settings: Settings, problem: Exception) -> bool:
    if isinstance(problem, NoDriver) or not settings.wait_for_devices:
        return not settings.fail_on_init_error
    return True


def _finds_otherwise(settings: Settings, before: Settings) -> bool:
    """Whether these settings look for GPUs elsewhere."""
    return (settings.discovery, settings.cdi.container_driver_root) != (
        before.discovery,
        before.cdi.container_driver_root,
    )


def _tell(event: str, loaded: Loaded) -> None:
    log.info(event, **loaded.settings.describe())
    for warning in loaded.warnings:
        log.warning(warning)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
