"""Calls of the driver that cannot stop the caller: each has a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from gpuslice.gpus.nvml.calls import DriverHangs, NvmlError, call

_T = TypeVar("_T")

# The index of a GPU; None: the driver as a whole.
Subject = int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds."""

    answer: float = 10.0
    # nvmlInit initialises every GPU, one after the other.
    opening: float = 60.0


@dataclass(eq=False, slots=True)
class _Job:
    subject: Subject
    work: Callable[[], object]
    name: str
    done: threading.Event = field(default_factory=threading.Event)
    result: object = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Hang:
    # The first call; a call of another thread may hang, too.
    name: str
    jobs: set[int] = field(default_factory=set)


class LimitedCalls:
    """Runs each call in a daemon thread, so a call that hangs does not keep the process alive.

    While a call about a GPU hangs, further calls about it fail at once; while a call about the
    driver as a whole hangs, all do. So the number of threads that hang is limited.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """`changed`: the hanging calls are others now. It is called from any thread."""
        self._limits = limits or Limits()
        self._changed = changed or (lambda: None)
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Job]] = []
        self._in_progress = 0
        # Abandoned calls that have not returned.
        self._hanging: dict[Subject, _Hang] = {}

    @property
    def limits(self) -> Limits:
        return self._limits

    def hanging(self) -> dict[Subject, str]:
        """The name of the call that does not return, by what it is about."""
        with self._lock:
            return {subject: hang.name for subject, hang in self._hanging.items()}

    def busy(self) -> bool:
        """Whether a thread is inside the driver."""
        with self._lock:
            return self._in_progress > 0

    def of(self, subject: Subject) -> SubjectCalls:
        return SubjectCalls(self, subject)

    def run(self, subject: Subject, name: str, work: Callable[[], _T], seconds: float) -> _T:
        """Raises DriverHangs after that many seconds, or at once after an earlier hang."""
        job = _Job(subject, work, name)
        self._start(job, seconds)
        if not job.done.wait(seconds) and self._abandon(job):
            raise _hangs(name, seconds)
        if job.error is not None:
            raise job.error
        return cast("_T", job.result)

    def _start(self, job: _Job, seconds: float) -> None:
        with self._lock:
            for subject in (None, job.subject):
                if subject in self._hanging:
                    raise _hangs(self._hanging[subject].name, seconds)
            jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(jobs,), name="nvml", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise NvmlError(f"{job.name}: {error}") from error
        with self._lock:
            self._in_progress += 1
        jobs.put(job)

    def _abandon(self, job: _Job) -> bool:
        """False: it has returned in the meantime."""
        with self._lock:
            if job.done.is_set():
                return False
            is_first = job.subject not in self._hanging
            hang = self._hanging.setdefault(job.subject, _Hang(job.name))
            hang.jobs.add(id(job))
        if is_first:
            self._changed()
        return True

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        while True:
            job = jobs.get()
            try:
                job.result = job.work()
            except BaseException as error:  # noqa: BLE001 (it belongs to the caller)
                job.error = error
            with self._lock:
                job.done.set()
                self._in_progress -= 1
                self._idle.append(jobs)
                is_last = self._returned(job)
            if is_last:
                self._changed()
            del job  # not kept until the next one

    def _returned(self, job: _Job) -> bool:
        """Whether it was the last call about its subject that hung."""
        hang = self._hanging.get(job.subject)
        if hang is None or id(job) not in hang.jobs:
            return False
        hang.jobs.discard(id(job))
        if hang.jobs:
            return False
        del self._hanging[job.subject]
        return True


@dataclass(frozen=True, slots=True)
class SubjectCalls:
    """Calls about one GPU, or about the driver as a whole. Raises NvmlError."""

    _calls: LimitedCalls
    _subject: Subject

    def __call__(self, function: Callable[..., _T], *args: Any, longer_seconds: float = 0.0) -> _T:
        """`longer_seconds`: the time that the call itself may wait."""
        return self.limited(function, *args, seconds=self._calls.limits.answer + longer_seconds)

    def opening(self, function: Callable[..., _T], *args: Any) -> _T:
        return self.limited(function, *args, seconds=self._calls.limits.opening)

    def limited(self, function: Callable[..., _T], *args: Any, seconds: float) -> _T:
        return self._calls.run(
            self._subject, function.__name__, lambda: call(function, *args), seconds
        )


def _hangs(name: str, seconds: float) -> DriverHangs:
    return DriverHangs(f"{name} has not returned within {seconds:g} s")
