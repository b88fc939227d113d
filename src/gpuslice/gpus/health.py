"""Watches the driver for errors that make a GPU unusable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from gpuslice.config.settings import HealthSettings
from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError, XidEvent, XidEvents
from gpuslice.gpus.xids import is_fatal, is_watched

_WAIT_MS = 500
# After an error of the wait itself, so that a broken driver does not become a busy loop.
_PAUSE_SECONDS = 1.0
# Waits end by themselves long before.
_STUCK_SECONDS = 5.0
# How often GPUs are asked whether they still answer: a lost one need not send an event.
_PROBE_EVERY_WAITS = 10
# An error that does not say the GPU is lost may pass; one that stays does not.
_PATIENT_PROBES = 3


class Cause(Enum):
    """What a trouble comes from, as that decides what may end it."""

    XID = "xid"
    LOST = "lost"  # the GPU does not answer
    UNWATCHED = "unwatched"  # it may be in order, but nobody would hear if it were not


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befell a GPU. `uuid` is None when the driver cannot say which one.

    Where an instance is set, only MIG devices of that instance are concerned.
    """

    uuid: str | None
    reason: str
    cause: Cause = Cause.UNWATCHED
    xid: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


def _unsaid(note: str) -> None:
    del note


class HealthWatch:
    """A thread that waits for XID events, since the driver's wait blocks.

    `report` and `note` are called on that thread, and during `start` on the caller's. A note is
    something that an operator should know although no GPU is unhealthy for it.
    """

    def __init__(
        self,
        nvml: Nvml,
        indices: Mapping[str, int],
        report: Callable[[Trouble], None],
        settings: HealthSettings,
        note: Callable[[str], None] = _unsaid,
    ) -> None:
        self._nvml = nvml
        self._indices = dict(indices)
        self._report = report
        self._settings = settings
        self._note = note
        self._handles: dict[str, GpuHandle] = {}
        self._events: XidEvents | None = None
        # How many probes in a row a GPU has failed.
        self._silent: dict[str, int] = {}
        # GPUs that are known not to answer.
        self._lost: set[str] = set()
        self._wait_error = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Events are collected from here on, so that none is missed before the first wait."""
        if not self._indices or not is_watched(self._settings):
            return
        for uuid, index in self._indices.items():
            try:
                self._handles[uuid] = self._nvml.gpu(index)
            except NvmlError as error:
                self._lose(uuid, error)
        try:
            self._open_events()
        except NvmlError as error:
            self._report(Trouble(None, f"GPU errors cannot be watched ({error})"))
        self._thread = threading.Thread(target=self._run, name="gpu-health", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Returns whether the thread has left the driver; it may be stuck there for good."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STUCK_SECONDS)
            if self._thread.is_alive():
                return False
        self._drain()
        self._close_events()
        return True

    def _drain(self) -> None:
        """What came in since the last wait would be lost with the set."""
        with contextlib.suppress(NvmlError):
            while self._events is not None and (event := self._events.wait(0)) is not None:
                if is_fatal(event.xid, self._settings):
                    self._tell(event)

    def _open_events(self) -> None:
        """Registers every GPU that answers, each once, however many devices it is offered as."""
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
                self._note(f"GPU {handle.index} ({uuid}) reports no XIDs; only its loss is noticed")
        except NvmlError as error:
            if error.gpu_is_lost:
                self._lose(uuid, error)
            else:
                self._report(Trouble(uuid, f"its errors cannot be watched ({error})"))

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            # A watch that died unseen would leave broken GPUs on offer.
            self._report(Trouble(None, f"the health watch failed ({error!r})"))
            raise

    def _watch(self) -> None:
        waits = 0
        while not self._stopping.is_set():
            if self._events is None:
                self._stopping.wait(_WAIT_MS / 1000)
            else:
                self._wait(self._events)
            waits += 1
            if waits % _PROBE_EVERY_WAITS == 0:
                self._probe()

    def _wait(self, events: XidEvents) -> None:
        try:
            event = events.wait(_WAIT_MS)
        except NvmlError as error:
            self._wait_failed(error)
            return
        self._wait_error = ""
        if event is not None and is_fatal(event.xid, self._settings):
            self._tell(event)

    def _wait_failed(self, error: NvmlError) -> None:
        """Which GPU is it? The others must not suffer for it."""
        if str(error) != self._wait_error:
            self._wait_error = str(error)
            self._note(f"waiting for GPU errors fails and is tried again ({error})")
        known = set(self._lost)
        self._probe()
        if self._lost - known:
            # A lost GPU may spoil the set for good; better the old one than none.
            with contextlib.suppress(NvmlError):
                self._open_events()
        self._stopping.wait(_PAUSE_SECONDS)

    def _tell(self, event: XidEvent) -> None:
        reason = f"XID {event.xid}"
        if event.handle is not None:
            uuid = next(u for u, h in self._handles.items() if h is event.handle)
            self._report(
                Trouble(
                    uuid, reason, Cause.XID, event.xid, event.gpu_instance, event.compute_instance
                )
            )
            return
        # Most likely a GPU that is gone, and so cannot say that it was its own.
        known = set(self._lost)
        self._probe()
        if not self._lost - known:
            self._report(Trouble(None, f"{reason} of an unknown GPU", Cause.XID, event.xid))

    def _probe(self) -> None:
        for uuid, handle in self._handles.items():
            try:
                handle.probe()
            except NvmlError as error:
                self._silent[uuid] = self._silent.get(uuid, 0) + 1
                if error.gpu_is_lost or self._silent[uuid] >= _PATIENT_PROBES:
                    self._lose(uuid, error)
            else:
                self._silent.pop(uuid, None)
                self._lost.discard(uuid)

    def _lose(self, uuid: str, error: NvmlError) -> None:
        """Once per loss: a lost GPU is found lost again at every probe."""
        if uuid in self._lost:
            return
        self._lost.add(uuid)
        what = "the GPU is lost" if error.gpu_is_lost else "the GPU does not answer"
        self._report(Trouble(uuid, f"{what} ({error})", Cause.LOST))
