"""Watches the driver for errors that make a GPU unusable."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from gpuslice.codes import Code
from gpuslice.config.settings import HealthSettings
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError, XidEvent, XidEvents
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

    def watch_started(self) -> None:
        """Everything that cannot be watched is reported again from here on."""

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
        self._events: XidEvents | None = None
        # How many probes in a row have failed.
        self._failed_probes: dict[str, int] = {}
        # GPUs that do not answer.
        self._lost: set[str] = set()
        self._wait_error = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The driver collects events from here on, so none is missed before the first wait."""
        self._reporter.watch_started()
        if not self._indices or not is_watched(self._settings):
            return
        for uuid, index in self._indices.items():
            try:
                self._handles[uuid] = self._nvml.gpu(index)
            except NvmlError as error:
                self._report_lost(uuid, error)
        try:
            self._open_events()
        except NvmlError as error:
            self._report(Code.GPU_NOT_WATCHED, f"GPU errors cannot be watched ({error})")
        self._thread = threading.Thread(target=self._run, name="gpu-health", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Returns whether the thread has ended. It may hang in a call to the driver forever."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STUCK_SECONDS)
            if self._thread.is_alive():
                return False
        self._drain()
        self._close_events()
        return True

    def _drain(self) -> None:
        """Events since the last wait would be lost with the event set."""
        with contextlib.suppress(NvmlError):
            while self._events is not None and (event := self._events.wait(0)) is not None:
                if is_fatal(event.xid, self._settings):
                    self._report_xid(event)

    def _open_events(self) -> None:
        """Registers every GPU that answers."""
        fresh = XidEvents()
        self._close_events()
        self._events = fresh
        for uuid, handle in self._handles.items():
            if uuid not in self._lost:
                self._register(fresh, uuid, handle)

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(NvmlError):
                events.close()

    def _register(self, events: XidEvents, uuid: str, handle: GpuHandle) -> None:
        try:
            if not events.register(handle):
                message = f"GPU {handle.index} ({uuid}) reports no XIDs; only its loss is detected"
                self._reporter.notice(Notice(Code.NO_XID_EVENTS, message))
        except NvmlError as error:
            if error.gpu_is_lost:
                self._report_lost(uuid, error)
            else:
                self._report(Code.GPU_NOT_WATCHED, f"its errors cannot be watched ({error})", uuid)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            # Without a watch, broken GPUs would stay healthy.
            self._report(Code.GPU_NOT_WATCHED, f"the health watch failed ({error!r})")
            raise

    def _watch(self) -> None:
        interval = self._timing.gpu_probe
        wait_seconds = min(interval, _LONGEST_WAIT_SECONDS)
        probe_at = time.monotonic() + interval
        while not self._stopping.is_set():
            if self._events is None:
                self._stopping.wait(wait_seconds)
            else:
                self._wait(self._events, wait_seconds)
            if time.monotonic() >= probe_at:
                self._probe()
                probe_at = time.monotonic() + interval

    def _wait(self, events: XidEvents, seconds: float) -> None:
        try:
            event = events.wait(round(seconds * 1000))
        except NvmlError as error:
            self._wait_failed(error)
            return
        self._wait_error = ""
        if event is not None and is_fatal(event.xid, self._settings):
            self._report_xid(event)

    def _wait_failed(self, error: NvmlError) -> None:
        """Finds the GPU that causes it, so that the others are not affected."""
        if str(error) != self._wait_error:
            self._wait_error = str(error)
            message = f"waiting for GPU errors fails, retrying ({error})"
            self._reporter.notice(Notice(Code.EVENT_WAIT_FAILED, message))
        known = set(self._lost)
        self._probe()
        if self._lost - known:
            # A lost GPU may break the event set. If a new one fails, too, the old one stays.
            with contextlib.suppress(NvmlError):
                self._open_events()
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
        self._report(Code.GPU_LOST, f"{what} ({error})", uuid)

    def _report(self, code: Code, message: str, uuid: str | None = None) -> None:
        self._reporter.fault(Fault(code, message, uuid))
