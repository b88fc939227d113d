"""Keeps the MPS daemon of one resource alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from gpuslice.cluster.backoff import Backoff
from gpuslice.mps.control import (
    CannotAsk,
    MpsSilent,
    MpsUnavailable,
    command,
    default_threads_percent,
    ping,
)
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.mps.daemon_plan import Wanted, still_serves
from gpuslice.mps.daemon_process import Process, end_process, find_process, has_ended
from gpuslice.mps.default_limits import default_commands, most_threads_percent, set_defaults
from gpuslice.mps.driver_programs import (
    ComputeMode,
    make_directories,
    set_compute_modes,
    start_daemon,
)
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_EVERY_SECONDS = 3.0
# A busy node may be slow for a while, and the end of a daemon is the end of its clients.
_SILENCES = 4
# A daemon that lived this long did not die of its start.
_LONG_LIFE_SECONDS = 60.0
_QUIT_SECONDS = 10.0
_NO_CEILING = 100.0


class ManagedDaemon:
    """`run` until it is cancelled, then `end`. `changed` is called when `answers` changes."""

    def __init__(
        self,
        wanted: Wanted,
        present: frozenset[str],
        place: DaemonPaths,
        changed: Callable[[], None],
    ) -> None:
        self.wanted = wanted
        self.answers = False
        # The GPUs of the daemon that runs or is being started.
        self.serves = wanted.gpus
        self._present = present
        self._place = place
        self._changed = changed
        self._process: Process | None = None
        self._is_ours = False
        # GPUs that may be in exclusive mode because of us.
        self._exclusive: set[str] = set()
        # Default limits that the daemon was given; None if nobody knows.
        self._defaults: tuple[str, ...] | None = None
        self._is_behind = False
        self._complaint = ""
        self._silences = 0

    def want(self, wanted: Wanted, present: frozenset[str]) -> None:
        """A daemon that runs stays. `present`: all GPUs that are there, for whatever use."""
        self.wanted = wanted
        self._present = present
        # A GPU that was away may have lost its mode.
        self._is_behind = True

    async def run(self) -> None:
        backoff = Backoff()
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self._bring_up()
            except MpsUnavailable as error:
                self._complain(self._state_of(error), error)
            else:
                began = clock()
                self._complaint = ""
                self._silences = 0
                self._tell(answers=True)
                await self._until_it_is_gone()
                self._tell(answers=False)
                if clock() - began > _LONG_LIFE_SECONDS:
                    backoff.reset()
            await asyncio.sleep(backoff.seconds())

    async def end(self) -> None:
        """What we did not start goes on."""
        self._tell(answers=False)
        if self._is_ours:
            await self._quit()
            self._unmark_started()
        elif not self._exclusive:
            return
        failures = await set_compute_modes(sorted(self._exclusive), ComputeMode.DEFAULT)
        for gpu, error in failures.items():
            log.warning("a GPU may still be in exclusive mode", gpu=gpu, reason=error)
        self._exclusive.clear()
        log.info("ended the MPS daemon", resource=self.wanted.resource)

    async def _bring_up(self) -> None:
        """Afterwards a daemon answers, be it a new one or one that was there."""
        if not await self._adopts():
            await self._start()
        self._process = find_process(self._place)

    async def _start(self) -> None:
        wanted, place = self.wanted, self._place
        # First of all: whoever makes plans meanwhile has to know what it will be.
        self.serves = wanted.gpus
        self._is_behind = False
        await self._make_exclusive(wanted.gpus)
        make_directories(place)
        # Before the start, so that a daemon which is slow to answer is known as ours.
        self._mark_started()
        self._is_ours = True
        try:
            await start_daemon(place, wanted.gpus)
        except MpsSilent:
            raise  # it may yet come up
        except MpsUnavailable:
            self._is_ours = False
            self._unmark_started()
            raise
        # Known only from here on: one that is taken over later may have its limits or not.
        self._defaults = ()
        await self._set_defaults(wanted)
        await ping(str(place.pipe))
        log.info(
            "started the MPS daemon",
            resource=wanted.resource,
            gpus=",".join(wanted.gpus),
            pipe=place.pipe,
        )

    async def _adopts(self) -> bool:
        """Whether a daemon is there that serves as ours would: its clients need not die."""
        try:
            ceiling = await default_threads_percent(str(self._place.pipe))
        except CannotAsk:
            raise
        except MpsUnavailable as error:
            if not isinstance(error, MpsSilent) and find_process(self._place) is None:
                self._unmark_started()  # what it spoke of has ended
                return False
            if self._started() is None or not self._hangs(error):
                raise
            await self._quit()
            return False
        started, wanted = self._started(), self.wanted
        if started is None:
            self._is_ours = False
            self._leave_alone(ceiling)
            return True
        if not still_serves(started, wanted.gpus, self._present):
            log.warning(
                "an MPS daemon is there that was started for other GPUs or by another program; "
                "it is ended, and its clients with it",
                resource=wanted.resource,
                gpus=",".join(started) or "all",
            )
            await self._quit()
            return False
        self._is_ours = True
        self.serves = started
        self._defaults = None
        self._exclusive.update(started)
        await self._catch_up()
        log.info(
            "took over the MPS daemon that was there",
            resource=wanted.resource,
            gpus=",".join(started),
        )
        return True

    def _leave_alone(self, ceiling: str) -> None:
        resource = self.wanted.resource
        log.info("an MPS daemon of someone else is there and is left alone", resource=resource)
        if _number(ceiling) < most_threads_percent(self.wanted):
            log.warning(
                "its default caps every container, whatever its own share is",
                resource=resource,
                threads_percent=ceiling,
                remedy="end that daemon: one with the right limits is started in its place",
            )

    async def _catch_up(self) -> None:
        """Gives a daemon that stays what the settings of now ask for."""
        self._is_behind = False
        wanted = self.wanted
        await self._make_exclusive(wanted.gpus)
        await self._set_defaults(wanted)

    async def _make_exclusive(self, gpus: tuple[str, ...]) -> None:
        self._exclusive.update(gpus)  # before it is so: who is interrupted knows what to undo
        failures = await set_compute_modes(gpus, ComputeMode.EXCLUSIVE_PROCESS)
        for error in failures.values():
            raise error

    async def _set_defaults(self, wanted: Wanted) -> None:
        """None where replicas may be merged, as a client can only tighten a default."""
        commands = default_commands(wanted, self.serves)
        if commands == self._defaults or (wanted.merges and self._defaults == ()):
            return
        self._defaults = None
        await set_defaults(self._place, wanted, self.serves)
        self._defaults = commands

    async def _until_it_is_gone(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await ping(str(self._place.pipe))
            except MpsUnavailable as error:
                if self._has_gone():
                    log.error(
                        "the MPS daemon is gone: starting it again",
                        resource=self.wanted.resource,
                        reason=error,
                    )
                    self._unmark_started()
                    return
                if isinstance(error, CannotAsk):
                    # A driver is being replaced, or memory is short: no reason to end anything.
                    self._complain(self._state_of(error), error)
                    continue
                self._tell(answers=False)
                if self._hangs(error) and self._is_ours:
                    await self._quit()
                    return
            else:
                self._silences = 0
                self._tell(answers=True)
                await self._follow()

    async def _follow(self) -> None:
        if not (self._is_behind and self._is_ours):
            self._complaint = ""
            return
        try:
            await self._catch_up()
        except MpsUnavailable as error:
            self._is_behind = True
            self._complain("the MPS daemon runs, but not yet as the settings say", error)

    def _has_gone(self) -> bool:
        """Only its process tells: a question may fail for reasons of its own."""
        if self._process is not None and not has_ended(self._process):
            return False
        return find_process(self._place) is None

    def _hangs(self, error: MpsUnavailable) -> bool:
        """Whether it has been silent for too long now."""
        self._silences += 1
        hangs = self._silences >= _SILENCES
        event = "the MPS daemon hangs" if hangs else "the MPS daemon is slow"
        log.warning(event, resource=self.wanted.resource, reason=error)
        return hangs

    async def _quit(self) -> None:
        """One that never started is none that has to quit."""
        self._silences = 0
        # Now: a daemon that quits takes its file away before it ends.
        process = find_process(self._place) or self._process
        with contextlib.suppress(MpsUnavailable):
            await command(str(self._place.pipe), "quit", _QUIT_SECONDS)
        if process is not None:
            await end_process(process)

    def _mark_started(self) -> None:
        try:
            self._place.started.write_text("".join(f"{gpu}\n" for gpu in self.serves))
        except OSError as error:  # the daemon serves without it
            log.warning("a mark cannot be set", file=self._place.started, reason=error.strerror)

    def _unmark_started(self) -> None:
        try:
            self._place.started.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a mark cannot be removed", file=self._place.started, reason=error.strerror)

    def _started(self) -> tuple[str, ...] | None:
        try:
            return tuple(self._place.started.read_text().split())
        except OSError:
            return None

    def _tell(self, *, answers: bool) -> None:
        if answers is not self.answers:
            self.answers = answers
            self._changed()

    def _state_of(self, error: MpsUnavailable) -> str:
        if isinstance(error, CannotAsk) and find_process(self._place) is not None:
            return "the MPS daemon cannot be asked"
        return "no MPS daemon, trying again"

    def _complain(self, event: str, error: MpsUnavailable) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.error(event, resource=self.wanted.resource, reason=error)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return _NO_CEILING
