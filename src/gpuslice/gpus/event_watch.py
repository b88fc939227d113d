"""The driver's events of a set of GPUs, watched again whenever that fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpuslice.backoff import Backoff
from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.nvml import DriverHangs, GpuHandle, Nvml, NvmlError, XidEvent, XidEvents
from gpuslice.slicing.notice import Notice

# A GPU that was never watched has no grace time.
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class _Failure:
    since: float
    message: str


class EventWatch:
    """An event set that is made again, with back-off, while it does not work.

    GPUs that cannot be watched are a fault: at once if they never were, otherwise after a time.
    """

    def __init__(
        self,
        nvml: Nvml,
        timing: Timing,
        *,
        pause: Callable[[float], object],
        unwatched: Callable[[tuple[Fault, ...]], None],
        notice: Callable[[Notice], None],
        received: Callable[[XidEvent], None],
    ) -> None:
        """`unwatched` gets all faults of GPUs that are not watched, whenever they change."""
        self._nvml = nvml
        self._grace_seconds = timing.gpu_unwatched
        self._pause = pause
        self._unwatched = unwatched
        self._notice = notice
        self._received = received
        self._backoff = Backoff(timing.gpu_event_retry)
        self._retry_at = 0.0
        self._handles: dict[str, GpuHandle] = {}
        self._events: XidEvents | None = None
        self._registered: set[str] = set()
        # By UUID; None: all GPUs.
        self._failures: dict[str | None, _Failure] = {}
        self._reported: tuple[Fault, ...] | None = None

    def start(self) -> None:
        self._make(since=_LONG_AGO)

    def add(self, uuid: str, handle: GpuHandle) -> None:
        """Raises NvmlError if the GPU is lost."""
        self._handles[uuid] = handle
        self._register(uuid, since=_LONG_AGO)

    def wait(self, seconds: float) -> XidEvent | None:
        """Raises NvmlError if the wait fails; call `failed` then."""
        if self._failures and time.monotonic() >= self._retry_at:
            self._retry()
        if self._events is None:
            self._pause(seconds)
            return None
        event = self._events.wait(round(seconds * 1000))
        self._failures.pop(None, None)
        if not self._failures:
            self._backoff.reset()
        return event

    def failed(self, error: NvmlError, lost: Collection[str]) -> None:
        """The wait failed. A GPU that is lost may break the event set, so it is not registered."""
        for uuid in lost:
            self._handles.pop(uuid, None)
            self._failures.pop(uuid, None)
        self._fail(None, f"waiting for GPU errors fails ({error})", time.monotonic())

    def report(self) -> None:
        """Reports GPUs that are not watched, or are again."""
        latest = time.monotonic() - self._grace_seconds
        faults = tuple(
            Fault(Code.GPU_NOT_WATCHED, failure.message, uuid)
            for uuid, failure in self._failures.items()
            if failure.since <= latest
        )
        if faults != self._reported:
            self._reported = faults
            self._unwatched(faults)

    def close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            self._end(events)

    def _retry(self) -> None:
        self._retry_at = time.monotonic() + self._backoff.seconds()
        if None in self._failures:
            self._make(time.monotonic())
            return
        for uuid in [uuid for uuid in self._handles if uuid not in self._registered]:
            # A lost GPU is found by its probe.
            with contextlib.suppress(NvmlError):
                self._register(uuid, time.monotonic())

    def _make(self, since: float) -> None:
        """The old set stays until the new one watches: no event is missed in between."""
        try:
            fresh = XidEvents(self._nvml)
        except DriverHangs:
            return  # this is a fault already
        except NvmlError as error:
            self._fail(None, f"GPU errors cannot be watched ({error})", since)
            return
        old, self._events = self._events, fresh
        self._registered.clear()
        for uuid in list(self._handles):
            with contextlib.suppress(NvmlError):
                self._register(uuid, since)
        if old is not None:
            self._end(old)

    def _register(self, uuid: str, since: float) -> None:
        if self._events is None:
            return
        handle = self._handles[uuid]
        try:
            if not self._events.register(handle):
                message = f"GPU {handle.index} ({uuid}) reports no XIDs; only its loss is detected"
                self._notice(Notice(Code.NO_XID_EVENTS, message))
        except NvmlError as error:
            if error.gpu_is_lost:
                raise
            if not isinstance(error, DriverHangs):
                self._fail(uuid, f"its errors cannot be watched ({error})", since)
            return
        self._registered.add(uuid)
        self._failures.pop(uuid, None)

    def _fail(self, uuid: str | None, message: str, since: float) -> None:
        """The first message stays, so that the same fault is reported once."""
        if not self._failures:
            self._retry_at = time.monotonic() + self._backoff.seconds()
        self._failures.setdefault(uuid, _Failure(since, message))

    def _end(self, events: XidEvents) -> None:
        """Events since the last wait would be lost with the event set."""
        with contextlib.suppress(NvmlError):
            while (event := events.wait(0)) is not None:
                self._received(event)
        with contextlib.suppress(NvmlError):
            events.close()
