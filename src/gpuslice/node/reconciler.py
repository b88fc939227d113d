"""Keeps a program in line with its configuration and with the GPUs of the node."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded
from gpuslice.config.settings import Settings
from gpuslice.gpus.allocated_devices import AllocatedDevicesUnreadable
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.errors import (
    DriverNotResponding,
    DriverReplaced,
    NoDriver,
    NoGpus,
    ProgramError,
)
from gpuslice.node.free_memory import return_free_memory
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.node.time_limit import TimeLimit
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

_NODE = "node"
_DRIVER = "driver"
_INVALID = Code.CONFIGURATION_INVALID
# With reasons that a user understands. Any other exception is a mistake of ours.
_EXPECTED = (ConfigError, NoGpus, SlicingError, ProgramError)
_LONGEST_REASON = 2000

P = TypeVar("P")


class Target(Protocol[P]):
    """What one program does with settings and hardware. `P` is its plan."""

    def needs_gpus(self, settings: Settings, problem: NoGpus | None) -> bool:
        """False: the program also works without GPUs, and plans with hardware None.

        Called before the GPUs are enumerated (`problem` is None), and again if that fails.
        """
        ...

    def plan(self, settings: Settings, hardware: Hardware | None) -> P:
        """Runs in a thread and may block. Raises SlicingError or ProgramError."""
        ...

    def check(self, plan: P) -> None:
        """Further checks of settings that are not in force yet. Blocks. Raises ProgramError."""
        ...

    async def apply(self, loaded: Loaded, plan: P) -> None:
        """Raises ProgramError if it fails and can be retried."""
        ...

    def suspend(self, problem: Problem, hardware: Hardware | None) -> None:
        """Not even the last good settings can be applied now; a retry follows.

        `hardware` is None if it cannot be read; otherwise the settings do not fit it.
        """
        ...

    def reset(self) -> None:
        """An operator requests a fresh start."""
        ...


class Reconciler(Generic[P]):
    """Load, enumerate, plan, apply: in this order, and again after each trigger.

    A plan is complete before any of it is applied. Whatever fails leaves the last good plan in
    force and is retried. That includes exceptions that nobody expects: no content of a file may end
    a program on which the pods of a node depend.
    """

    def __init__(
        self,
        *,
        target: Target[P],
        load: Callable[[], Loaded],
        driver: Driver,
        state: NodeState,
        triggers: Triggers,
        metrics: Metrics,
        retry_seconds: float,
        check_seconds: float,
    ) -> None:
        self._target = target
        self._load = load
        self._driver = driver
        self._state = state
        self._triggers = triggers
        self._metrics = metrics
        self._retry_seconds = retry_seconds
        self._loading = TimeLimit(check_seconds)
        self._planning = TimeLimit(check_seconds)
        self._hardware: Hardware | None = None
        # The hardware that was read last, and the settings that it was read with.
        self._last_read: tuple[Hardware, Settings] | None = None
        self._in_force: Loaded | None = None
        self._conditions = Conditions(log)

    async def start(self) -> None:
        """Returns when the first plan is applied. Waits for GPUs if the settings say so.

        Raises ConfigError or ProgramError if the program cannot start.
        """
        try:
            loaded = await self._loading.run(self._load)
        except _EXPECTED:
            raise
        except Exception as error:
            raise ProgramError(_INVALID, f"the configuration {_unexpected(error)}") from error
        self._accept(loaded)
        while not await self._start_with(loaded):
            if await self._triggers.wait_for(self._retry_seconds):
                reloaded = await self._reload()
                if reloaded is not None:
                    loaded = reloaded
                    self._accept(loaded)

    async def run(self) -> None:
        """Until cancelled. Raises DriverReplaced if the process must restart."""
        while True:
            await self._reconcile(await self._triggers.wait())

    async def _start_with(self, loaded: Loaded) -> bool:
        """False: there are no GPUs yet."""
        try:
            plan = await self._plan(loaded.settings, rescan=True)
            await asyncio.to_thread(self._target.check, plan)
        except (NoGpus, NothingToAdvertise) as problem:
            if not _waits(loaded.settings, problem):
                raise ProgramError(
                    problem.code,
                    f"{problem}. To wait for GPUs, use --fail-on-init-error=false",
                ) from problem
            self._conditions.set(_NODE, Code.WAITING_FOR_GPUS, "waiting for GPUs", problem)
            return False
        except SlicingError as error:
            raise ProgramError(error.code, str(error)) from error
        except (ProgramError, DriverReplaced):
            raise
        except Exception as error:
            log.exception(_INVALID, "unexpected error")
            raise ProgramError(_INVALID, f"the configuration {_unexpected(error)}") from error
        await self._target.apply(loaded, plan)
        self._in_force = loaded
        self._conditions.clear(_NODE)
        return True

    async def _reconcile(self, triggers: frozenset[Trigger]) -> None:
        try:
            await self._reconcile_once(triggers)
        except DriverReplaced:
            raise
        except Exception as error:  # noqa: BLE001 (whatever fails is retried)
            self._fail(error)

    async def _reconcile_once(self, triggers: frozenset[Trigger]) -> None:
        assert self._in_force is not None
        last_good, generation = self._in_force, self._state.current.generation
        if Trigger.RESET in triggers:
            # Now and not at the end: faults that occur meanwhile are new.
            self._target.reset()
        # Other hardware may allow settings that were rejected.
        reads = bool(triggers & {Trigger.RESET, Trigger.SETTINGS}) or self._is_rejected()
        reloaded = await self._reload() if reads else None
        unchanged = reloaded is not None and reloaded.settings == last_good.settings
        if reloaded is not None and unchanged:
            self._accept(reloaded)
        rescan = bool(triggers & {Trigger.RESET, Trigger.HARDWARE})
        loaded, plan = await self._plan_or_fall_back(
            reloaded or last_good, last_good, rescan=rescan
        )
        if loaded is reloaded and not unchanged:
            self._accept(loaded)
        self._in_force = await self._apply_or_fall_back(loaded, plan, last_good)
        self._conditions.clear(_NODE, Code.RECOVERED, "reconciling works again")
        if reads or self._state.current.generation != generation:
            rejected = bool(self._state.current.config_problems)
            settings = "the last good settings" if rejected else "the configuration"
            log.info(Code.RECONCILED, f"reconciled with {settings} and the GPUs")

    async def _plan_or_fall_back(
        self, wanted: Loaded, last_good: Loaded, *, rescan: bool
    ) -> tuple[Loaded, P]:
        """The plan of the wanted settings, or of the last good ones if those fail."""
        settings = wanted.settings
        elsewhere = _reads_other_hardware(settings, last_good.settings)
        if settings == last_good.settings:
            return wanted, await self._plan(settings, rescan=rescan)
        try:
            hardware = await self._scan(settings, rescan=rescan or elsewhere)
            return wanted, await self._planning.run(lambda: self._checked_plan(settings, hardware))
        except DriverReplaced:
            raise
        except Exception as error:
            # Settings that read the same hardware are not the reason why GPUs are missing.
            if isinstance(error, DriverNotResponding) or (
                isinstance(error, NoGpus) and not elsewhere
            ):
                raise
            self._reject(error)
            return last_good, await self._plan(last_good.settings, rescan=elsewhere)

    async def _apply_or_fall_back(self, wanted: Loaded, plan: P, last_good: Loaded) -> Loaded:
        """Returns what is in force. An expected error is retried with the wanted settings."""
        try:
            await self._target.apply(wanted, plan)
        except (*_EXPECTED, DriverReplaced):
            raise
        except Exception as error:
            if wanted.settings == last_good.settings:
                raise
            self._reject(error)
            plan = await self._plan(last_good.settings, rescan=False)
            await self._target.apply(last_good, plan)
            return last_good
        return wanted

    async def _plan(self, settings: Settings, *, rescan: bool) -> P:
        hardware = await self._scan(settings, rescan=rescan)
        return await asyncio.to_thread(self._target.plan, settings, hardware)

    def _checked_plan(self, settings: Settings, hardware: Hardware | None) -> P:
        plan = self._target.plan(settings, hardware)
        self._target.check(plan)
        return plan

    async def _scan(self, settings: Settings, *, rescan: bool) -> Hardware | None:
        """None: there are no GPUs, or none are needed."""
        if not self._target.needs_gpus(settings, None):
            self._hardware = None
            await self._driver.close()
            return None
        if rescan or self._hardware is None:
            self._hardware = None
            try:
                self._hardware = await self._driver.enumerate(settings)
                self._last_read = self._hardware, settings
                self._conditions.clear(_DRIVER)
            except DriverNotResponding as problem:
                self._hardware = self._keep_hardware(settings, problem)
            except NoGpus as problem:
                if self._target.needs_gpus(settings, problem):
                    raise
        return self._hardware

    def _keep_hardware(self, settings: Settings, problem: DriverNotResponding) -> Hardware:
        """A driver that hangs does not hold up new settings. Its GPUs are unhealthy meanwhile."""
        if self._last_read is None or _reads_other_hardware(settings, self._last_read[1]):
            raise problem
        self._conditions.set(
            _DRIVER,
            problem.code,
            "the driver does not answer: settings apply to the GPUs that were found before",
            problem,
            level=LogLevel.WARNING,
        )
        return self._last_read[0]

    async def _reload(self) -> Loaded | None:
        """None if the configuration is invalid."""
        try:
            return await self._loading.run(self._load)
        except Exception as error:  # noqa: BLE001 (the last good settings stay in force)
            self._reject(error)
        await asyncio.to_thread(return_free_memory)
        return None

    def _accept(self, loaded: Loaded) -> None:
        self._metrics.reloaded(True)
        problems = tuple(p for p in self._state.current.config_problems if p.code is not _INVALID)
        self._state.publish(
            replace(self._state.current, settings=loaded.settings, config_problems=problems)
        )

    def _reject(self, error: Exception) -> None:
        self._metrics.reloaded(False)
        self._state.set_config_problem(Problem(_INVALID, _reason(error)))

    def _is_rejected(self) -> bool:
        return any(problem.code is _INVALID for problem in self._state.current.config_problems)

    def _fail(self, error: Exception) -> None:
        self._conditions.set(
            _NODE, Code.RECONCILE_FAILED, "cannot reconcile, retrying", _reason(error)
        )
        code: Code = getattr(error, "code", Code.NODE_UNREADABLE)
        if code is not Code.TOO_FEW_DESCRIPTORS:
            code = Code.NODE_UNREADABLE
        self._target.suspend(Problem(code, _reason(error)), self._hardware)
        self._hardware = None  # a retry enumerates the GPUs again
        self._triggers.add_later(Trigger.SETTINGS, self._retry_seconds)


def _waits(settings: Settings, problem: Exception) -> bool:
    """Whether a program that starts waits for GPUs; otherwise it exits."""
    operator_decides = isinstance(problem, NoDriver | AllocatedDevicesUnreadable)
    if operator_decides or not settings.wait_for_devices:
        return not settings.fail_on_init_error
    return True


def _reason(error: Exception) -> str:
    reason = str(error) if isinstance(error, _EXPECTED) else _unexpected(error)
    encodable = reason.encode(errors="backslashreplace").decode()
    return encodable if len(encodable) <= _LONGEST_REASON else f"{encodable[:_LONGEST_REASON]}…"


def _unexpected(error: Exception) -> str:
    """With the place in our code: the log has one line for it, and no stack."""
    if isinstance(error, TimeoutError):
        return f"cannot be read, checked or applied in time ({error})"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"cannot be used: unexpected {type(error).__name__}: {error}{place}"


def _reads_other_hardware(settings: Settings, before: Settings) -> bool:
    return (settings.discovery, settings.cdi.container_driver_root) != (
        before.discovery,
        before.cdi.container_driver_root,
    )
