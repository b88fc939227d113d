"""Watches the driver for errors that make a GPU unusable."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Protocol

from gpuslice.codes import Code
from gpuslice.config.settings import HealthSettings
from gpuslice.config.timing import Timing
from gpuslice.gpus.event_watch import EventWatch
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.nvml import DriverHangs, GpuHandle, Nvml, NvmlError, XidEvent
from gpuslice.gpus.xids import is_fatal, is_watched
from gpuslice.slicing.notice import Notice

# An event ends the wait at once.
_LONGEST_WAIT_SECONDS = 0.5
# How long `stop` waits for the thread. A wait for events ends long before.
_STUCK_SECONDS = 5.0
# An error other than "GPU is lost" may be temporary.
_PROBES_UNTIL_LOST = 3


class HealthReporter(Protocol):
    """Called from the thread of the watch, and from the thread that starts it."""

    def unwatched(self, faults: tuple[Fault, ...]) -> None:
        """These GPUs cannot be watched now; all others can."""

    def fault(self, fault: Fault) -> None: ...

    def notice(self, notice: Notice) -> None:
        """Something that an operator should know although no GPU is unhealthy."""


class HealthWatch:
    """A thread that waits for XID events, because the driver's wait blocks."""

    def __init__(
        self,
        nvml: Nvml,
        indices: Mapping[str, int],
        settings: HealthSettings,
        reporter: HealthReporter,
        timing: Timing,
    ) -> None:
        self._nvml = nvml
        self._indices = dict(indices)
        self._settings = settings
        self._reporter = reporter
        self._timing = timing
        self._handles: dict[str, GpuHandle] = {}
        # How many probes in a row have failed.
        self._failed_probes: dict[str, int] = {}
        # GPUs that do not answer.
        self._lost: set[str] = set()
        self._wait_error = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._events = EventWatch(
            nvml,
            timing,
            pause=self._stopping.wait,
            unwatched=reporter.unwatched,
            notice=reporter.notice,
            received=self._received,
        )

    def start(self) -> None:
        """The driver collects events from here on, so none is missed before the first wait."""
        if self._indices and is_watched(self._settings):
            self._events.start()
            self._open_handles()
            self._thread = threading.Thread(target=self._run, name="gpu-health", daemon=True)
            self._thread.start()
        else:
            self._reporter.unwatched(())

    def stop(self) -> bool:
        """Returns whether the thread has ended. A call to the driver may take a while."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STUCK_SECONDS)
            if self._thread.is_alive():
                return False
        self._events.close()
        return True

    def _open_handles(self) -> None:
        """Those that are missing."""
        for uuid, index in self._indices.items():
            if uuid in self._handles:
                continue
            try:
                self._handles[uuid] = self._nvml.gpu(index)
                self._events.add(uuid, self._handles[uuid])
            except DriverHangs:
                continue  # this is a fault already
            except NvmlError as error:
                self._report_lost(uuid, error)
        self._events.report()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            # Without a watch, broken GPUs would stay healthy.
            message = f"the health watch failed ({error!r})"
            self._reporter.unwatched((Fault(Code.GPU_NOT_WATCHED, message),))
            raise

    def _watch(self) -> None:
        interval = self._timing.gpu_probe
        wait_seconds = min(interval, _LONGEST_WAIT_SECONDS)
        probe_at = time.monotonic() + interval
        while not self._stopping.is_set():
            self._wait(wait_seconds)
            if time.monotonic() >= probe_at:
                self._open_handles()
                self._probe()
                probe_at = time.monotonic() + interval
            self._events.report()

    def _wait(self, seconds: float) -> None:
        try:
            event = self._events.wait(seconds)
        except DriverHangs:
            # This is a fault already, and the GPUs are enumerated again when the call returns.
            self._stopping.wait(self._timing.gpu_event_retry)
        except NvmlError as error:
            self._wait_failed(error)
        else:
            self._wait_error = ""
            if event is not None:
                self._received(event)

    def _received(self, event: XidEvent) -> None:
        if is_fatal(event.xid, self._settings):
            self._report_xid(event)

    def _wait_failed(self, error: NvmlError) -> None:
        """Finds the GPU that causes it, so that the others are not affected."""
        if str(error) != self._wait_error:
            self._wait_error = str(error)
            message = f"waiting for GPU errors fails, retrying ({error})"
            self._reporter.notice(Notice(Code.EVENT_WAIT_FAILED, message))
        self._probe()
        self._events.failed(error, self._lost)
        # A broken driver must not cause a busy loop.
        self._stopping.wait(self._timing.gpu_event_retry)

    def _report_xid(self, event: XidEvent) -> None:
        reason = f"XID {event.xid}"
        if event.handle is not None:
            uuid = next(u for u, h in self._handles.items() if h is event.handle)
            self._reporter.fault(
                Fault(
                    Code.XID,
                    reason,
                    uuid,
                    event.gpu_instance,
                    event.compute_instance,
                    event.xid,
                )
            )
            return
        # Most likely the GPU is lost, and the driver cannot identify it any more.
        known = set(self._lost)
        self._probe()
        if not self._lost - known:
            self._reporter.fault(Fault(Code.XID, f"{reason} of an unknown GPU", xid=event.xid))

    def _probe(self) -> None:
        for uuid, handle in self._handles.items():
            try:
                handle.probe()
            except DriverHangs:
                continue  # this is a fault already
            except NvmlError as error:
                self._failed_probes[uuid] = self._failed_probes.get(uuid, 0) + 1
                if error.gpu_is_lost or self._failed_probes[uuid] >= _PROBES_UNTIL_LOST:
                    self._report_lost(uuid, error)
            else:
                self._failed_probes.pop(uuid, None)
                self._lost.discard(uuid)

    def _report_lost(self, uuid: str, error: NvmlError) -> None:
        """Reports once per loss: every probe of a lost GPU fails."""
        if uuid in self._lost:
            return
        self._lost.add(uuid)
        what = "the GPU is lost" if error.gpu_is_lost else "the GPU does not answer"
        self._reporter.fault(Fault(Code.GPU_LOST, f"{what} ({error})", uuid))
