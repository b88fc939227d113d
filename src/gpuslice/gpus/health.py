"""Watches the driver for errors that make a GPU unusable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gpuslice.gpus.nvml import GpuHandle, Nvml, NvmlError, XidEvents

# Errors of an application, not of the GPU: the next process finds it in order.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})

_WAIT_MS = 500
# After an error of the wait itself, so that a broken driver does not become a busy loop.
_PAUSE_SECONDS = 1.0
# Waits end by themselves long before.
_STUCK_SECONDS = 5.0
# How often GPUs are asked whether they still answer: a lost one need not send an event.
_PROBE_EVERY_WAITS = 10


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befell a GPU. `uuid` is None when the driver cannot say which one."""

    uuid: str | None
    reason: str


class HealthWatch:
    """A thread that waits for XID events, since the driver's wait blocks.

    `report` is called on that thread.
    """

    def __init__(
        self, nvml: Nvml, indices: dict[str, int], report: Callable[[Trouble], None]
    ) -> None:
        self._nvml = nvml
        self._indices = indices
        self._handles: dict[str, GpuHandle] = {}
        self._report = report
        self._reported: set[str] = set()
        self._events: XidEvents | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-health", daemon=True)

    def start(self) -> None:
        """Events are collected from here on, so that none is missed before the first wait."""
        try:
            self._events = XidEvents()
        except NvmlError as error:
            self._report(Trouble(None, f"GPU errors cannot be watched ({error})"))
        for uuid, index in self._indices.items():
            self._register(uuid, index)
        self._thread.start()

    def stop(self) -> bool:
        """Returns whether the thread has left the driver; it may be stuck there for good."""
        self._stopping.set()
        self._thread.join(_STUCK_SECONDS)
        if self._thread.is_alive():
            return False
        if self._events is not None:
            with contextlib.suppress(NvmlError):
                self._events.close()
        return True

    def _register(self, uuid: str, index: int) -> None:
        try:
            self._handles[uuid] = self._nvml.gpu(index)
            if self._events is not None:
                self._events.register(self._handles[uuid])
        except NvmlError as error:
            if not error.unsupported:
                self._tell(uuid, f"its errors cannot be watched ({error})")

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
        except NvmlError:
            # Which GPU is it? The others must not suffer for it.
            self._probe()
            self._stopping.wait(_PAUSE_SECONDS)
            return
        if event is None or event.xid in APPLICATION_XIDS:
            return
        owner = next((u for u, h in self._handles.items() if h is event.handle), None)
        self._report(Trouble(owner, f"XID {event.xid}"))

    def _probe(self) -> None:
        for uuid, handle in self._handles.items():
            try:
                handle.uuid()
            except NvmlError as error:
                if error.gpu_is_lost:
                    self._tell(uuid, "the GPU is lost")

    def _tell(self, uuid: str, reason: str) -> None:
        """Once per GPU: a lost GPU is found lost again at every probe."""
        if uuid not in self._reported:
            self._reported.add(uuid)
            self._report(Trouble(uuid, reason))
