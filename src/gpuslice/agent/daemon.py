"""The agent's life: start, run, reload, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
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


class _Wish(Enum):
    """What the operator, or the agent itself, wants next."""

    STOP = auto()
    RELOAD = auto()


@dataclass(frozen=True, slots=True)
class _Served:
    """A resource that is being served."""

    settings: Settings
    guard: MpsGuard
    slices: MemorySlices
    task: asyncio.Task[None]


class Agent:
    def __init__(self, load: Callable[[], Settings]) -> None:
        self._load = load
        self._wishes: asyncio.Queue[_Wish] = asyncio.Queue()

    async def run(self) -> None:
        self._handle_signals()
        settings = self._load()
        log.info("effective settings", **settings.describe())
        async with contextlib.AsyncExitStack() as stack:
            driver = Driver()
            stack.push_async_callback(driver.close)
            inventory = await self._first_inventory(driver, settings)
            if inventory is not None:
                await self._serve(driver, settings, inventory)
        log.info("stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._wishes.put_nowait, _Wish.STOP)
        loop.add_signal_handler(signal.SIGHUP, self._wishes.put_nowait, _Wish.RELOAD)
        loop.add_signal_handler(signal.SIGQUIT, dump_stacks)

    async def _first_inventory(self, driver: Driver, settings: Settings) -> Inventory | None:
        """Waits for GPUs if the settings say so; None if asked to stop meanwhile."""
        told = ""
        while True:
            try:
                return await driver.enumerate()
            except NoGpus as problem:
                if settings.fail_on_init_error:
                    raise AgentError(str(problem)) from problem
                if str(problem) != told:
                    told = str(problem)
                    log.error("waiting for GPUs", reason=told, retry_seconds=_RETRY_SECONDS)
            if await self._wish_within(_RETRY_SECONDS) is _Wish.STOP:
                return None

    async def _serve(self, driver: Driver, settings: Settings, inventory: Inventory) -> None:
        try:
            plan = Plan.of(settings, inventory)
        except SlicingError as error:
            raise AgentError(str(error)) from error
        async with asyncio.TaskGroup() as tasks:
            served = await self._start(tasks, driver, plan, inventory)
            while await self._wishes.get() is _Wish.RELOAD:
                served = await self._reload(tasks, driver, served)
            served.task.cancel()

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
        return _Served(settings, guard, slices, tasks.create_task(serve()))

    async def _reload(self, tasks: asyncio.TaskGroup, driver: Driver, served: _Served) -> _Served:
        """Checks everything first; whatever is wrong leaves the last good settings in force."""
        settings = served.settings
        try:
            settings = self._load()
        except ConfigError as error:
            log.error("keeping the last good settings", reason=error)
        try:
            inventory = await driver.enumerate()
        except NoGpus as problem:
            log.error("no GPUs, trying again", reason=problem, retry_seconds=_RETRY_SECONDS)
            served.slices.mark_unhealthy(None, str(problem))
            asyncio.get_running_loop().call_later(
                _RETRY_SECONDS, self._wishes.put_nowait, _Wish.RELOAD
            )
            return served
        try:
            plan = Plan.of(settings, inventory)
        except SlicingError as error:
            log.error("keeping the last good settings", reason=error)
            plan = Plan.of(served.settings, inventory)
        log.info("reloaded", **plan.settings.describe())
        if not _serves_alike(plan.settings, served.settings):
            served.task.cancel()
            await asyncio.wait([served.task])
            return await self._start(tasks, driver, plan, inventory)
        served.slices.replace_plan(plan)
        await self._watch(driver, served.slices, plan, inventory)
        return replace(served, settings=plan.settings)

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

    async def _wish_within(self, seconds: float) -> _Wish | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._wishes.get()
        except TimeoutError:
            return None


def _mark(slices: MemorySlices, trouble: Trouble) -> None:
    for uuid in slices.mark_unhealthy(trouble.uuid, trouble.reason):
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
