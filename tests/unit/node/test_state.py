"""One publisher, many readers."""

from __future__ import annotations

from dataclasses import replace

from gpuslice.codes import Code
from gpuslice.gpus.faults import Fault
from gpuslice.node.snapshot import Problem, Snapshot
from gpuslice.node.state import NodeState

LOST = Fault(Code.GPU_LOST, "lost", "GPU-a")
XID = Fault(Code.XID, "XID 79", "GPU-b", xid=79)
DOWN = Problem(Code.MPS_UNAVAILABLE, "no answer")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_reader_gets_every_change_in_order_with_a_higher_generation() -> None:
    state = NodeState()
    one: list[tuple[int, int]] = []
    other: list[Snapshot] = []
    state.subscribe(lambda before, after: one.append((before.generation, after.generation)))
    unsubscribe = state.subscribe(lambda _, after: other.append(after))
    state.add_fault(LOST)
    unsubscribe()
    state.add_fault(XID)
    assert one == [(0, 1), (1, 2)]
    assert [snapshot.faults for snapshot in other] == [(LOST,)]
    assert state.current.faults == (LOST, XID)


def test_an_equal_snapshot_is_not_published() -> None:
    state = NodeState()
    state.add_fault(LOST)
    changes: list[Snapshot] = []
    state.subscribe(lambda _, after: changes.append(after))
    state.publish(replace(state.current))
    state.add_fault(replace(LOST, since=7.0))
    state.set_config_problem(Problem(Code.CONFIGURATION_INVALID, "wrong"))
    state.set_config_problem(Problem(Code.CONFIGURATION_INVALID, "wrong"))
    assert len(changes) == 1


def test_a_fault_keeps_the_time_at_which_it_was_first_seen() -> None:
    clock = Clock()
    state = NodeState(clock)
    state.add_fault(LOST)
    clock.now = 200.0
    state.replace_faults((LOST, XID, XID))
    assert [(fault.code, fault.since) for fault in state.current.faults] == [
        (Code.GPU_LOST, 100.0),
        (Code.XID, 200.0),
    ]
    state.drop_faults(lambda fault: fault.code is Code.GPU_LOST)
    state.add_fault(LOST)
    assert [fault.since for fault in state.current.faults] == [200.0, 200.0]


def test_a_daemon_has_the_time_since_it_answers_or_does_not() -> None:
    clock = Clock()
    state = NodeState(clock)
    state.set_daemon("one", None)
    clock.now = 200.0
    state.set_daemon("one", DOWN)
    clock.now = 300.0
    state.set_daemon("one", Problem(Code.MPS_UNAVAILABLE, "another reason"))
    assert state.current.daemons["one"].since == 200.0
    state.set_daemon("other", None)
    state.keep_daemons(["other"])
    assert list(state.current.daemons) == ["other"]


def test_a_problem_with_the_configuration_lasts_until_it_is_cleared() -> None:
    state = NodeState()
    state.set_config_problem(Problem(Code.CONFIGURATION_NOT_FOUND, "missing"))
    state.set_config_problem(Problem(Code.CONFIGURATION_INVALID, "one"))
    state.set_config_problem(Problem(Code.CONFIGURATION_INVALID, "two"))
    assert [problem.message for problem in state.current.config_problems] == ["two", "missing"]
    state.clear_config_problem(Code.CONFIGURATION_NOT_FOUND)
    assert [problem.message for problem in state.current.config_problems] == ["two"]
