"""Publishes the state of the node: one publisher, many readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuslice.codes import Code
from gpuslice.gpus.faults import Fault
from gpuslice.node.snapshot import DaemonState, Problem, Snapshot

# Called with the snapshot before and the snapshot after a change.
Reader = Callable[[Snapshot, Snapshot], None]


class NodeState:
    """Used on the event loop only. Readers are called in order, for every change."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._current = Snapshot()
        self._readers: list[Reader] = []

    @property
    def current(self) -> Snapshot:
        return self._current

    def subscribe(self, reader: Reader) -> Callable[[], None]:
        """Returns the function that ends the subscription."""
        self._readers.append(reader)
        return lambda: self._readers.remove(reader)

    def publish(self, snapshot: Snapshot) -> None:
        """A snapshot that is equal to the current one is not published."""
        before = self._current
        if snapshot == before:
            return
        self._current = replace(snapshot, generation=before.generation + 1)
        for reader in tuple(self._readers):
            reader(before, self._current)

    # Changes of a part of the snapshot

    def add_fault(self, fault: Fault) -> None:
        """A broken GPU may report the same fault thousands of times."""
        if fault not in self._current.faults:
            self.replace_faults((*self._current.faults, fault))

    def replace_faults(self, faults: Iterable[Fault]) -> None:
        self.publish(replace(self._current, faults=self.timed(faults)))

    def replace_faults_of(self, code: Code, faults: Iterable[Fault]) -> None:
        """Faults with other codes stay."""
        others = (fault for fault in self._current.faults if fault.code is not code)
        self.replace_faults((*others, *faults))

    def timed(self, faults: Iterable[Fault]) -> tuple[Fault, ...]:
        """Each fault once, with the time at which it was first seen."""
        known = {fault: fault for fault in self._current.faults}
        now = self._clock()
        return tuple(known.get(f) or replace(f, since=now) for f in dict.fromkeys(faults))

    def drop_faults(self, drop: Callable[[Fault], bool]) -> None:
        self.replace_faults(fault for fault in self._current.faults if not drop(fault))

    def set_daemon(self, name: str, problem: Problem | None) -> None:
        known = self._current.daemons.get(name)
        if known is not None and (known.problem is None) == (problem is None):
            since = known.since
        else:
            since = self._clock()
        daemons = {**self._current.daemons, name: DaemonState(problem, since)}
        self.publish(replace(self._current, daemons=daemons))

    def keep_daemons(self, names: Iterable[str]) -> None:
        """Drops the state of all other daemons."""
        kept = {n: state for n, state in self._current.daemons.items() if n in set(names)}
        self.publish(replace(self._current, daemons=kept))

    def set_config_problem(self, problem: Problem) -> None:
        others = (p for p in self._current.config_problems if p.code is not problem.code)
        problems = tuple(sorted((*others, problem), key=lambda p: p.code))
        self.publish(replace(self._current, config_problems=problems))

    def clear_config_problem(self, code: Code) -> None:
        problems = tuple(p for p in self._current.config_problems if p.code is not code)
        self.publish(replace(self._current, config_problems=problems))
