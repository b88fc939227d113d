"""What the node offers, and how that follows settings and hardware."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gpuslice.agent.announce import announce, announce_settings
from gpuslice.agent.assembly import Assembled, assemble, check_directories, withdraw
from gpuslice.agent.driver import Driver, NoGpus
from gpuslice.agent.errors import AgentError
from gpuslice.agent.fleet import Fleet
from gpuslice.agent.labelling import Labelling
from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.outlook import finds_otherwise, waits
from gpuslice.agent.plan import Node
from gpuslice.agent.wishes import Wish, Wishes
from gpuslice.cluster.events import Events, EventType
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.settings import Settings
from gpuslice.gpus.health import Trouble
from gpuslice.slicing.errors import NothingToOffer, SlicingError
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

_RETRY_SECONDS = 5.0


class Offering:
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
        self._assembled: Assembled | None = None
        # Where CDI files were written, by whichever settings.
        self._cdi_directories: set[str] = set()
        # Device nodes that are missing; see Assembled.
        self.awaited: tuple[Path, ...] = ()

    async def begin(self, settings: Settings) -> None:
        """Waits for GPUs if the settings say so, and hears of new settings meanwhile."""
        told = ""
        while True:
            try:
                self._node = await self._driver.enumerate(settings)
                assembled = await self._assemble(settings, self._node)
                await asyncio.to_thread(check_directories, assembled)
                break
            except (NoGpus, NothingToOffer) as problem:
                if not waits(settings, problem):
                    raise AgentError(str(problem)) from problem
                if str(problem) != told:
                    told = str(problem)
                    log.error("waiting for GPUs", reason=told, retry_seconds=_RETRY_SECONDS)
            except SlicingError as error:
                raise AgentError(str(error)) from error
            if await self._wishes.within(_RETRY_SECONDS):
                loaded = await self._load_again()
                if loaded is not None:
                    self._accept(loaded, settings)
                    settings = loaded.settings
        announce(assembled)
        await self._apply(assembled)

    async def fulfil(self, wishes: frozenset[Wish]) -> None:
        """Checks everything first; whatever is wrong leaves what was last good in force."""
        assert self._settings is not None
        last_good = self._settings
        if Wish.BEGIN_ANEW in wishes:
            # Now and not at the end: what befalls a GPU meanwhile is news.
            self._health.clear()
        # Other hardware may allow what was refused.
        reads = bool(wishes & {Wish.BEGIN_ANEW, Wish.SETTINGS} or self._complaint)
        loaded = await self._load_again() if reads else None
        if loaded is not None and loaded.settings == last_good:
            self._accept(loaded, last_good)
        wished = last_good if loaded is None else loaded.settings
        look_again = bool(wishes & {Wish.BEGIN_ANEW, Wish.HARDWARE})
        try:
            assembled = await self._try(wished, last_good, look_again=look_again)
        except (NoGpus, SlicingError, AgentError) as problem:
            log.error("no GPUs to offer, trying again", reason=problem, seconds=_RETRY_SECONDS)
            self._health.suspend()
            self._fleet.refresh()
            self._node = None
            self._wishes.add_later(Wish.SETTINGS, _RETRY_SECONDS)
            return
        self._health.resume()
        refused = reads and (loaded is None or assembled.settings != loaded.settings)
        if loaded is not None and not refused and wished != last_good:
            self._accept(loaded, last_good)
        if not refused or assembled != self._assembled:
            announce(assembled)
        await self._apply(assembled)
        resources = ",".join(sorted(assembled.plans))
        log.info("still offering" if refused else "reloaded", resources=resources)

    def end(self) -> None:
        if self._settings is not None:
            withdraw(self._settings.cdi, self._cdi_directories)

    async def _enumerate(self, settings: Settings) -> Node:
        assert self._settings is not None
        self._watched = None
        node = await self._driver.enumerate(settings)
        # At once, since nobody has watched the GPUs while the driver was opened anew.
        await self._watch(self._settings)
        return node

    async def _try(self, settings: Settings, last_good: Settings, *, look_again: bool) -> Assembled:
        """What the settings make of the node, or what the last good ones do if these fail."""
        elsewhere = finds_otherwise(settings, last_good)
        try:
            node = await self._look(settings, again=look_again or elsewhere)
            assembled = await self._assemble(settings, node)
            if settings != last_good:
                await asyncio.to_thread(check_directories, assembled)
        except (NoGpus, SlicingError, AgentError) as error:
            # A node without GPUs is not the fault of settings that look where the last ones did.
            if settings == last_good or (isinstance(error, NoGpus) and not elsewhere):
                raise
            await self._complain(str(error))
            return await self._assemble(last_good, await self._look(last_good, again=elsewhere))
        return assembled

    async def _look(self, settings: Settings, *, again: bool) -> Node:
        if again or self._node is None:
            self._node = None
            self._node = await self._enumerate(settings)
        return self._node

    async def _assemble(self, settings: Settings, node: Node) -> Assembled:
        if settings.containers.uses_cdi:
            self._cdi_directories.add(settings.cdi.directory)
        return await asyncio.to_thread(assemble, settings, node)

    async def _load_again(self) -> Loaded | None:
        """None if they are wrong, which is then told."""
        try:
            return self._load()
        except ConfigError as error:
            await self._complain(str(error))
            return None

    def _accept(self, loaded: Loaded, before: Settings) -> None:
        """Told only now: settings that the node refuses are never in force."""
        if loaded.settings != before or self._complaint:
            announce_settings("new settings", loaded)
        self._complaint = ""
        self._metrics.reloaded(True)

    async def _complain(self, problem: str) -> None:
        log.error("keeping the last good settings", reason=problem)
        self._metrics.reloaded(False)
        if problem != self._complaint:
            self._complaint = problem
            await self._events.record("ConfigurationInvalid", problem, EventType.WARNING)

    async def _apply(self, assembled: Assembled) -> None:
        settings, inventory = assembled.settings, assembled.node.inventory
        self._assembled = assembled
        before, self._settings = self._settings, settings
        if before is not None and before.memory.unit != settings.memory.unit:
            log.warning("the memory unit changed: pods that run keep what they hold by the old one")
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
