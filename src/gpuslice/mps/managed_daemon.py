"""Runs one MPS control daemon and restarts it if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuslice.backoff import Backoff
from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.mps.control import (
    CannotProbe,
    MpsBusy,
    MpsTimeout,
    MpsUnavailable,
)
from gpuslice.mps.daemon_control import Controls, DaemonControl
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.mps.daemon_plan import DaemonSpec, can_stay
from gpuslice.mps.daemon_process import Process, end_process, find_process, has_ended
from gpuslice.mps.daemon_shm import DaemonShm
from gpuslice.mps.default_limits import (
    default_commands,
    set_defaults,
    set_first_defaults,
)
from gpuslice.mps.drain import drain, end_drain
from gpuslice.mps.driver_programs import (
    ComputeMode,
    make_directories,
    set_compute_modes,
    start_daemon,
)
from gpuslice.mps.foreign_daemon import report_foreign
from gpuslice.mps.kept_sockets import KeptSockets
from gpuslice.mps.namespace_start import NamespaceStart
from gpuslice.mps.started_marker import StartedMarker
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A busy node may be slow for a while, and clients fail when their daemon is stopped.
_PROBES_UNTIL_RESTART = 4
# A daemon that ran this long did not fail to start.
_STABLE_SECONDS = 60.0
_DAEMON = "daemon"


class ManagedDaemon:
    """Call `run`, cancel it, then call `stop`. `changed` is called when `answers` changes."""

    def __init__(
        self,
        wanted: DaemonSpec,
        present: frozenset[str],
        paths: DaemonPaths,
        changed: Callable[[], None],
        timing: Timing,
        daemons: int,
    ) -> None:
        """`daemons`: how many there are, which share the memory of the node."""
        self.wanted = wanted
        self.answers = False
        # The GPUs of the daemon that runs or is being started.
        self.serves = wanted.gpus
        self._present = present
        self._paths = paths
        self._changed = changed
        self._timing = timing
        self._shm = DaemonShm(paths, daemons)
        self._marker = StartedMarker(paths)
        self._controls = Controls(str(paths.pipe), timing.mps_command)
        self.namespaces = NamespaceStart(paths, self._controls.namespaces)
        self.sockets = KeptSockets(paths)
        self._process: Process | None = None
        self._is_ours = False
        # GPUs that we may have put into exclusive mode.
        self._exclusive: set[str] = set()
        # Default limits of the daemon; None: unknown.
        self._defaults: tuple[str, ...] | None = None
        self._is_outdated = False
        self._failed_probes = 0
        self._conditions = Conditions(log)

    @property
    def is_settled(self) -> bool:
        """It answers, and has the limits of the current settings."""
        return self._is_ours and self.answers and not self._is_outdated

    @property
    def _control(self) -> DaemonControl:
        return self._controls.of(namespaces=self.namespaces.exist)

    def want(self, wanted: DaemonSpec, present: frozenset[str]) -> None:
        """A running daemon stays. `present`: all GPUs of the node."""
        self.wanted = wanted
        self._present = present
        # A GPU that was missing may have lost its compute mode.
        self._is_outdated = True

    async def run(self) -> None:
        backoff = Backoff(self._timing.mps_restart)
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self._bring_up()
            except MpsUnavailable as error:
                await self._report(error)
            else:
                started_at = clock()
                self._conditions.clear(_DAEMON)
                self._failed_probes = 0
                self._set_answers(answers=True)
                await self._until_it_fails()
                self._set_answers(answers=False)
                if clock() - started_at > _STABLE_SECONDS:
                    backoff.reset()
            await asyncio.sleep(backoff.seconds())

    def inherit(self) -> None:
        """A daemon that a killed program left behind is ours. `stop` also resets its GPUs."""
        self._is_ours = True
        self._exclusive.update(self.serves)

    async def stop(self) -> None:
        """Waits for its clients. A daemon that we did not start continues to run."""
        self._set_answers(answers=False)
        if self._is_ours:
            await self._drain_and_quit()
            await self.sockets.forget()
            self._forget_daemon()
            await asyncio.to_thread(self._shm.remove)
        elif not self._exclusive:
            return
        failures = await set_compute_modes(sorted(self._exclusive), ComputeMode.DEFAULT)
        for gpu, error in failures.items():
            log.warning(
                Code.COMPUTE_MODE_NOT_RESTORED,
                "GPU may still be in EXCLUSIVE_PROCESS mode",
                gpu=gpu,
                reason=error,
            )
        self._exclusive.clear()
        log.info(Code.MPS_STOPPED, "stopped MPS control daemon", daemon=self.wanted.name)

    async def _bring_up(self) -> None:
        """Adopts a running daemon or starts a new one."""
        if not await self._adopt():
            await self._start()
        if self._is_ours:
            await self.sockets.keep()
        self._process = await self._find_process()
        end_drain(self._paths)

    async def _find_process(self) -> Process | None:
        return await asyncio.to_thread(find_process, self._paths)

    async def _start(self) -> None:
        wanted, paths = self.wanted, self._paths
        # First: a plan that is made meanwhile must know the GPUs of the new daemon.
        self.serves = wanted.gpus
        self._is_outdated = False
        await self._make_exclusive(wanted.gpus)
        await asyncio.to_thread(make_directories, paths)
        await asyncio.to_thread(self._shm.prepare)
        await self.sockets.forget()
        # Before the start, so that a daemon that answers late is known to be ours.
        self._marker.write(self.serves, partitions=wanted.partitions)
        self._is_ours = True
        self.namespaces.forget()
        try:
            if not await self.namespaces.start(wanted, self._quit):
                await start_daemon(paths, wanted.gpus, wanted.options)
        except MpsTimeout:
            raise  # it may still come up
        except MpsUnavailable:
            self._is_ours = False
            self._forget_daemon()
            raise
        if not self.namespaces.exist:
            # A new daemon has no default limits; those of an adopted one are unknown.
            self._defaults = ()
            await self._set_first_defaults(wanted)
        await self._control.ping()
        log.info(
            Code.MPS_STARTED,
            "started MPS control daemon",
            daemon=wanted.name,
            gpus=",".join(wanted.gpus),
            pipe=paths.pipe,
            namespaces=self.namespaces.exist,
        )

    async def _adopt(self) -> bool:
        """Whether a daemon runs that can serve as ours, so that its clients survive."""
        try:
            ceiling = await self._control.default_threads_percent()
        except CannotProbe:
            raise
        except MpsUnavailable as error:
            if not isinstance(error, MpsTimeout) and await self._find_process() is None:
                self._forget_daemon()  # its daemon has exited
                return False
            if isinstance(error, MpsBusy) or self._marker.read() is None:
                raise
            if not self._must_restart(error):
                raise
            await self._quit()
            return False
        started_with, wanted = self._marker.read(), self.wanted
        if started_with is None:
            self._is_ours = False
            report_foreign(wanted, ceiling)
            return True
        is_right = self._marker.has_partitions == wanted.partitions
        is_right = is_right and self.namespaces.suit(wanted)
        if not is_right or not can_stay(started_with, wanted.gpus, self._present):
            log.warning(
                Code.MPS_REPLACED,
                "stopping an MPS control daemon that was started for "
                f"{'other GPUs' if is_right else 'other limits of threads'}; its clients fail",
                daemon=wanted.name,
                gpus=",".join(started_with) or "all",
            )
            await self._drain_and_quit()
            return False
        self._is_ours = True
        self.serves = started_with
        self._defaults = None
        self._exclusive.update(started_with)
        await self._update()
        log.info(
            Code.MPS_ADOPTED,
            "adopted running MPS control daemon",
            daemon=wanted.name,
            gpus=",".join(started_with),
        )
        return True

    async def _update(self) -> None:
        """Applies the current settings to a running daemon."""
        self._is_outdated = False
        wanted = self.wanted
        await self._make_exclusive(wanted.gpus)
        await self._set_defaults(wanted)

    async def _make_exclusive(self, gpus: tuple[str, ...]) -> None:
        self._exclusive.update(gpus)  # first, so that an interrupted call can be undone
        failures = await set_compute_modes(gpus, ComputeMode.EXCLUSIVE_PROCESS)
        for error in failures.values():
            raise error

    async def _set_defaults(self, wanted: DaemonSpec) -> None:
        """None if the daemon does not limit its clients: they can only lower a default."""
        if self.namespaces.exist:
            await self.namespaces.update(wanted)
            return
        commands = default_commands(wanted, self.serves)
        if commands == self._defaults or (not wanted.limited and self._defaults == ()):
            return
        self._defaults = None
        await set_defaults(self._controls.plain, wanted, self.serves)
        self._defaults = commands

    async def _set_first_defaults(self, wanted: DaemonSpec) -> None:
        if not wanted.limited:
            return
        try:
            await set_first_defaults(self._controls.plain, wanted, self.serves)
        except MpsTimeout:
            raise  # it may still come up, and is adopted then
        except MpsUnavailable:
            await self._quit()
            raise
        self._defaults = default_commands(wanted, self.serves)

    async def _until_it_fails(self) -> None:
        while True:
            await asyncio.sleep(self._timing.mps_daemon_probe)
            try:
                await self._control.ping()
            except MpsUnavailable as error:
                if await self._has_exited():
                    log.error(
                        Code.MPS_EXITED,
                        "MPS control daemon exited, restarting it",
                        daemon=self.wanted.name,
                        reason=error,
                    )
                    self._forget_daemon()
                    return
                if isinstance(error, CannotProbe):
                    # A driver is being replaced, or memory is short: no reason to stop anything.
                    await self._report(error)
                    continue
                self._set_answers(answers=False)
                if isinstance(error, MpsBusy):
                    # Other containers must not pay for it with their contexts.
                    await self._report(error)
                    continue
                if self._must_restart(error) and self._is_ours:
                    await self._quit()
                    return
            else:
                self._failed_probes = 0
                self._set_answers(answers=True)
                await self._update_if_outdated()

    async def _update_if_outdated(self) -> None:
        if not (self._is_outdated and self._is_ours):
            self._conditions.clear(_DAEMON)
            return
        try:
            await self._update()
        except MpsUnavailable as error:
            self._is_outdated = True
            self._conditions.set(
                _DAEMON,
                Code.MPS_OUTDATED,
                "cannot apply the settings to the MPS control daemon, retrying",
                error,
                daemon=self.wanted.name,
            )

    async def _has_exited(self) -> bool:
        """By its process: a probe may fail for other reasons."""
        if self._process is not None and not has_ended(self._process):
            return False
        return await self._find_process() is None

    def _must_restart(self, error: MpsUnavailable) -> bool:
        """Whether too many probes in a row failed."""
        self._failed_probes += 1
        restart = self._failed_probes >= _PROBES_UNTIL_RESTART
        log.warning(
            Code.MPS_UNAVAILABLE,
            f"MPS control daemon does not answer, {'restarting it' if restart else 'retrying'}",
            daemon=self.wanted.name,
            reason=error,
        )
        return restart

    async def _drain_and_quit(self) -> None:
        await drain(self._control, self._paths, self._timing)
        await self._quit()
        end_drain(self._paths)

    async def _quit(self) -> None:
        """Does nothing if no daemon runs."""
        self._failed_probes = 0
        # First: a daemon that quits removes its pid file before it exits.
        process = await self._find_process() or self._process
        await self._control.quit(self._timing.mps_quit)
        if process is not None:
            await end_process(process, self._timing.mps_exit)

    def _forget_daemon(self) -> None:
        """It has ended, or did not start."""
        self._marker.remove()
        self.namespaces.forget()

    def _set_answers(self, *, answers: bool) -> None:
        if answers is not self.answers:
            self.answers = answers
            self._changed()

    async def _report(self, error: MpsUnavailable) -> None:
        is_unknown = isinstance(error, CannotProbe | MpsBusy)
        runs = is_unknown and await self._find_process() is not None
        event = "cannot probe MPS control daemon" if runs else "no MPS control daemon, retrying"
        self._conditions.set(_DAEMON, Code.MPS_UNAVAILABLE, event, error, daemon=self.wanted.name)
