"""The agent's life: start, run, reload, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.agent.announce import announce
from gpuslice.agent.driver import Driver, NoGpus
from gpuslice.agent.errors import AgentError
from gpuslice.agent.memory import MemorySlices, Plan
from gpuslice.agent.mps_guard import MpsGuard
from gpuslice.config.errors import ConfigError
from gpuslice.config.settings import Settings
from gpuslice.gpus.health import Trouble
from gpuslice.gpus.inventory import Inventory
from gpuslice.kubelet.endpoint import Endpoint, EndpointError
from gpuslice.slicing.errors import SlicingError
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.stacks import dump_stacks

log = Logger(__name__)

_RETRY_SECONDS = 5.0


def run_agent(load: Callable[[], Settings]) -> None:
    """Runs until SIGTERM or SIGINT. `load` reads the settings, at start and at every SIGHUP.

    Raises AgentError if the agent cannot do its work.
    """
    try:
        asyncio.run(Agent(load).run())
    except* (AgentError, EndpointError) as failures:
        raise AgentError("; ".join(str(error) for error in _leaves(failures))) from None


@dataclass(frozen=True, slots=True)
class _Served:
    """A resource that is being served."""

    settings: Settings
    slices: MemorySlices
    task: asyncio.Task[None]


class Agent:
    def __init__(self, load: Callable[[], Settings]) -> None:
        self._load = load
        self._stop = asyncio.Event()
        # Set, not counted: however many wishes come in while one is fulfilled, one more will do.
        self._reload_wanted = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        self._handle_signals()
        settings = self._load()
        log.info("effective settings", **settings.describe())
        async with contextlib.AsyncExitStack() as stack:
            driver = Driver()
            stack.push_async_callback(driver.close)
            work = asyncio.create_task(self._work(driver, settings))
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
        loop.add_signal_handler(signal.SIGHUP, self._reload_wanted.set)
        loop.add_signal_handler(signal.SIGQUIT, dump_stacks)

    async def _work(self, driver: Driver, settings: Settings) -> None:
        settings, inventory = await self._first_inventory(driver, settings)
        try:
            plan = Plan.of(settings, inventory)
        except SlicingError as error:
            raise AgentError(str(error)) from error
        async with asyncio.TaskGroup() as tasks:
            served = await self._start(tasks, driver, plan, inventory)
            while await self._reload_wanted.wait():
                self._reload_wanted.clear()
                served = await self._reload(tasks, driver, served)

    async def _first_inventory(
        self, driver: Driver, settings: Settings
    ) -> tuple[Settings, Inventory]:
        """Waits for GPUs if the settings say so, and hears of new settings meanwhile."""
        told = ""
        while True:
            try:
                return settings, await driver.enumerate()
            except NoGpus as problem:
                if settings.fail_on_init_error:
                    raise AgentError(str(problem)) from problem
                if str(problem) != told:
                    told = str(problem)
                    log.error("waiting for GPUs", reason=told, retry_seconds=_RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await self._reload_wanted.wait()
                self._reload_wanted.clear()
                settings = self._load_again(settings)

    def _load_again(self, last_good: Settings) -> Settings:
        try:
            return self._load()
        except ConfigError as error:
            log.error("keeping the last good settings", reason=error)
            return last_good

    async def _start(
        self, tasks: asyncio.TaskGroup, driver: Driver, plan: Plan, inventory: Inventory
    ) -> _Served:
        settings = plan.settings
        guard = MpsGuard(settings)
        slices = MemorySlices(plan, guard)
        endpoint = Endpoint(slices, Path(settings.kubelet_socket), settings.plugin_socket)

        async def serve() -> None:
            # Before anything is offered: the first list must not promise limits that nobody holds.
            await guard.look()
            slices.refresh()
            async with asyncio.TaskGroup() as parts:
                parts.create_task(endpoint.run())
                parts.create_task(guard.watch(slices.refresh))

        await self._watch(driver, slices, plan, inventory)
        return _Served(settings, slices, tasks.create_task(serve()))

    async def _reload(self, tasks: asyncio.TaskGroup, driver: Driver, served: _Served) -> _Served:
        """Checks everything first; whatever is wrong leaves the last good settings in force."""
        settings = self._load_again(served.settings)
        try:
            inventory = await driver.enumerate()
            plan = _plan(settings, served.settings, inventory)
        except (NoGpus, SlicingError) as problem:
            log.error("no GPUs to offer, trying again", reason=problem, seconds=_RETRY_SECONDS)
            served.slices.mark_unhealthy(None)
            self._reload_later()
            return served
        log.info("reloaded", **plan.settings.describe())
        if plan.settings.memory_unit != served.settings.memory_unit:
            log.warning("the memory unit changed: pods that run keep what they hold by the old one")
        if not _serves_alike(plan.settings, served.settings):
            served.task.cancel()
            await asyncio.wait([served.task])
            return await self._start(tasks, driver, plan, inventory)
        served.slices.replace_plan(plan)
        await self._watch(driver, served.slices, plan, inventory)
        return replace(served, settings=plan.settings)

    def _reload_later(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(_RETRY_SECONDS, self._reload_wanted.set)

    async def _watch(
        self, driver: Driver, slices: MemorySlices, plan: Plan, inventory: Inventory
    ) -> None:
        announce(plan, inventory)
        if not plan.settings.health_checks:
            return
        loop = asyncio.get_running_loop()

        def report(trouble: Trouble) -> None:
            loop.call_soon_threadsafe(_mark, slices, trouble)

        await driver.watch_health(inventory, report)


def _plan(settings: Settings, last_good: Settings, inventory: Inventory) -> Plan:
    try:
        return Plan.of(settings, inventory)
    except SlicingError as error:
        if settings == last_good:
            raise
        log.error("keeping the last good settings", reason=error)
        return Plan.of(last_good, inventory)


def _mark(slices: MemorySlices, trouble: Trouble) -> None:
    for uuid in slices.mark_unhealthy(trouble.uuid):
        log.error("a GPU became unhealthy", uuid=uuid, reason=trouble.reason)


def _serves_alike(one: Settings, other: Settings) -> bool:
    """Whether the kubelet need not hear of the change except through the device list."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("resource", "kubelet_socket", "mps_pipe", "mps_check")
    )


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
