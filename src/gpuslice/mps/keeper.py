"""Keeps the MPS daemon of one resource alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from gpuslice.cluster.backoff import Backoff
from gpuslice.mps.control import (
    ControlProgramMissing,
    MpsSilent,
    MpsUnavailable,
    command,
    default_threads_percent,
    ping,
)
from gpuslice.mps.places import Place
from gpuslice.mps.plan import Wanted
from gpuslice.mps.programs import ComputeMode, end_process, set_compute_mode, start_daemon
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_EVERY_SECONDS = 3.0
# A busy node may be slow for a while, and the end of a daemon is the end of its clients.
_SILENCES = 4
# A daemon that lived this long did not die of its start.
_LONG_LIFE_SECONDS = 60.0
_QUIT_SECONDS = 10.0
_NO_CEILING = 100.0


class Keeper:
    """`run` until it is cancelled, then `end`. `changed` is called when `answers` changes."""

    def __init__(self, wanted: Wanted, place: Place, changed: Callable[[], None]) -> None:
        # May be replaced at any time; it counts from the next start of the daemon on.
        self.wanted = wanted
        self.answers = False
        # The GPUs of the daemon that runs.
        self.serves = wanted.gpus
        self._place = place
        self._changed = changed
        self._is_ours = False
        self._exclusive: set[str] = set()
        self._complaint = ""
        self._silences = 0

    async def run(self) -> None:
        backoff = Backoff()
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self._bring_up()
            except MpsUnavailable as error:
                self._complain(error)
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
            self._place.started.unlink(missing_ok=True)
        elif not self._exclusive:
            return
        for gpu in sorted(self._exclusive):
            try:
                await set_compute_mode(gpu, ComputeMode.DEFAULT)
            except MpsUnavailable as error:
                log.warning("a GPU stays in exclusive mode", gpu=gpu, reason=error)
        self._exclusive.clear()
        log.info("ended the MPS daemon", resource=self.wanted.resource)

    async def _bring_up(self) -> None:
        """Afterwards a daemon answers, be it a new one or one that was there."""
        if await self._adopts():
            return
        wanted, place = self.wanted, self._place
        for gpu in wanted.gpus:
            await set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
            self._exclusive.add(gpu)
        self._is_ours = True
        await start_daemon(place, wanted.gpus)
        await ping(str(place.pipe))
        self.serves = wanted.gpus
        self._mark_started()
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
        except MpsSilent as error:
            if self._started() is None or not self._hangs(error):
                raise
            await self._quit()
            return False
        except ControlProgramMissing:
            raise
        except MpsUnavailable:
            return False
        started = self._started()
        resource, gpus = self.wanted.resource, self.wanted.gpus
        if started is None:
            self._is_ours = False
            log.info("an MPS daemon of someone else is there and is left alone", resource=resource)
            if _number(ceiling) < _NO_CEILING:
                log.warning(
                    "its default caps every container, whatever its own share is",
                    resource=resource,
                    threads_percent=ceiling,
                    remedy="end that daemon: one without a cap is started in its place",
                )
            return True
        if started != gpus:
            log.warning(
                "an MPS daemon is there that was started for other GPUs or by another program; "
                "it is ended, and its clients with it",
                resource=resource,
                gpus=",".join(started) or "all",
            )
            await self._quit()
            return False
        self._is_ours = True
        self.serves = gpus
        self._exclusive.update(gpus)
        log.info("took over the MPS daemon that was there", resource=resource, gpus=",".join(gpus))
        return True

    async def _until_it_is_gone(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await ping(str(self._place.pipe))
            except ControlProgramMissing as error:
                self._complain(error)  # a driver is being replaced; nothing is known meanwhile
            except MpsSilent as error:
                self._tell(answers=False)
                if self._hangs(error) and self._is_ours:
                    await self._quit()
                    return
            except MpsUnavailable as error:
                log.error(
                    "the MPS daemon is gone: starting it again",
                    resource=self.wanted.resource,
                    reason=error,
                )
                await end_process(self._place)
                return
            else:
                self._silences = 0
                self._tell(answers=True)

    def _hangs(self, error: MpsSilent) -> bool:
        """Whether it has been silent for too long now."""
        self._silences += 1
        hangs = self._silences >= _SILENCES
        event = "the MPS daemon hangs" if hangs else "the MPS daemon is slow"
        log.warning(event, resource=self.wanted.resource, reason=error)
        return hangs

    async def _quit(self) -> None:
        """One that never started is none that has to quit."""
        with contextlib.suppress(MpsUnavailable):
            await command(str(self._place.pipe), "quit", _QUIT_SECONDS)
        await end_process(self._place)

    def _mark_started(self) -> None:
        try:
            self._place.started.write_text("".join(f"{gpu}\n" for gpu in self.serves))
        except OSError as error:  # the daemon serves without it
            log.warning("a mark cannot be set", file=self._place.started, reason=error.strerror)

    def _started(self) -> tuple[str, ...] | None:
        try:
            return tuple(self._place.started.read_text().split())
        except OSError:
            return None

    def _tell(self, *, answers: bool) -> None:
        if answers is not self.answers:
            self.answers = answers
            self._changed()

    def _complain(self, error: MpsUnavailable) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.error("no MPS daemon, trying again", resource=self.wanted.resource, reason=error)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return _NO_CEILING
