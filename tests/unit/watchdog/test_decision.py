"""Usage, grants and time -> actions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.watchdog.attribution import Container, ProcessUsage, Usage
from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.container_names import ContainerName
from gpuslice.watchdog.decision import (
    Action,
    Began,
    Ended,
    EndProcess,
    Evict,
    Policy,
    Step,
    Violations,
    allowed_bytes,
    decide,
    surplus,
)
from gpuslice.watchdog.process_files import ProcessId

TERMINATE = Policy(WatchdogMode.TERMINATE, grace_seconds=30, step_seconds=10, slack_bytes=5)
REPORT = replace(TERMINATE, mode=WatchdogMode.REPORT)
EVICT = replace(TERMINATE, mode=WatchdogMode.EVICT)


def usage(granted: int, *used: int, gpu: str = "GPU-0", name: str = "main") -> Usage:
    """Processes 1, 2, … of these sizes, the oldest first."""
    container = Container(ContainerName("ns", "pod", name), ContainerId("uid", name))
    processes = (ProcessUsage(ProcessId(pid, pid), size) for pid, size in enumerate(used, start=1))
    return Usage(container, gpu, granted, tuple(processes))


def history(policy: Policy, *rounds: tuple[float, list[Usage]]) -> list[list[Action]]:
    """The actions of each round: the time, and what was read."""
    violations: Violations = {}
    found = []
    for now, usages in rounds:
        decision = decide(violations, usages, policy, now)
        violations = decision.violations
        found.append(list(decision.actions))
    return found


def steps(actions: list[Action]) -> list[tuple[int, Step]]:
    return [(one.process.pid, one.step) for one in actions if isinstance(one, EndProcess)]


@pytest.mark.parametrize("used", [(), (100,), (60, 45), (0, 105)])
def test_a_container_within_its_grant_and_the_slack_is_left_alone(used: tuple[int, ...]) -> None:
    assert history(TERMINATE, (0, [usage(100, *used)]), (99, [usage(100, *used)])) == [[], []]


def test_a_violation_is_reported_once_and_its_end_once() -> None:
    over = usage(100, 60, 60)
    rounds = history(
        REPORT, (0, [over]), (5, [over]), (500, [over]), (505, [usage(100, 60)]), (510, [])
    )
    assert rounds == [[Began(over)], [], [], [Ended(over.container, "GPU-0")], []]


def test_processes_are_ended_after_the_grace_time_first_by_mps_then_by_signal() -> None:
    over = usage(100, 90, 60)
    times = [0, 29, 30, 35, 40, 45, 50]
    found = [steps(actions) for actions in history(TERMINATE, *((t, [over]) for t in times))]
    assert found == [[], [], [(2, Step.TERMINATE)], [], [(2, Step.KILL)], [], [(2, Step.KILL)]]


def test_a_violation_that_ends_in_time_has_no_consequence() -> None:
    over, fine = usage(100, 90, 60), usage(100, 90)
    rounds = history(TERMINATE, (0, [over]), (29, [fine]), (31, [over]), (60, [over]))
    assert [steps(actions) for actions in rounds] == [[], [], [], []]


def test_a_process_that_takes_the_place_of_an_ended_one_gets_its_own_steps() -> None:
    first = usage(100, 90, 60)
    newer = replace(first, processes=(first.processes[0], ProcessUsage(ProcessId(2, 999), 60)))
    rounds = history(TERMINATE, (0, [first]), (30, [first]), (40, [newer]))
    assert steps(rounds[2]) == [(2, Step.TERMINATE)]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ((60, 60), [2]),
        ((200,), [1]),
        ((90, 90, 90), [3, 2]),
        # Ending the newest one alone would not help, and it is not needed either.
        ((200, 3), [1]),
        ((60, 60, 10), [2]),
        ((60, 0, 60), [3]),
    ],
)
def test_the_newest_processes_end_and_no_more_than_needed(
    used: tuple[int, ...], expected: list[int]
) -> None:
    assert [one.process.pid for one in surplus(usage(100, *used), 0)] == expected


def test_a_pod_is_evicted_after_the_grace_time_and_again_if_it_stays() -> None:
    over = usage(100, 200)
    rounds = history(EVICT, *((t, [over]) for t in (0, 29, 30, 35, 40)))
    assert rounds == [[Began(over)], [], [Evict(over)], [], [Evict(over)]]


def test_a_gpu_that_cannot_be_read_changes_nothing() -> None:
    over = usage(100, 200)
    first = decide({}, [over], TERMINATE, 0)
    second = decide(first.violations, [], TERMINATE, 100, unread_gpus={"GPU-0"})
    assert second.violations == first.violations
    assert second.actions == ()
    assert steps(list(decide(second.violations, [over], TERMINATE, 101).actions))


sizes = st.lists(st.integers(0, 300), max_size=5)
readings = st.lists(
    st.tuples(st.integers(1, 20), st.dictionaries(st.sampled_from(["a", "b", "c"]), sizes)),
    max_size=12,
)


@given(readings, st.sampled_from(list(WatchdogMode)))
def test_nothing_happens_without_a_violation_that_lasted(
    rounds: list[tuple[int, dict[str, list[int]]]], mode: WatchdogMode
) -> None:
    policy = replace(TERMINATE, mode=mode)
    violations: Violations = {}
    over_since: dict[str, float] = {}
    now = 0.0
    for later, containers in rounds:
        now += later
        usages = [usage(100, *used, name=name) for name, used in containers.items()]
        over = {u.container.name.container for u in usages if u.used_bytes > 105}
        over_since = {name: over_since.get(name, now) for name in over}
        decision = decide(violations, usages, policy, now)
        violations = decision.violations
        assert {key[0].name.container for key in violations} == over
        for action in decision.actions:
            if isinstance(action, EndProcess | Evict):
                name = action.usage.container.name.container
                assert now - over_since[name] >= policy.grace_seconds
                expected = (
                    WatchdogMode.EVICT if isinstance(action, Evict) else WatchdogMode.TERMINATE
                )
                assert mode is expected


@given(sizes, st.integers(0, 300), st.integers(0, 50))
def test_what_remains_fits_and_no_process_ends_in_vain(
    used: list[int], granted: int, slack: int
) -> None:
    before = usage(granted, *used)
    ended = surplus(before, slack)
    kept = tuple(one for one in before.processes if one not in ended)
    after = replace(before, processes=kept)
    assert after.used_bytes <= allowed_bytes(after, slack)
    for one in ended:
        with_it = replace(before, processes=(*kept, one))
        assert with_it.used_bytes > allowed_bytes(with_it, slack)


@pytest.mark.parametrize(
    ("granted", "used", "allowed"),
    [
        (1000, (), 1000),
        (1000, (500,), 1100),
        (1000, (500, 500), 1200),
        (1000, (500, 40), 1140),  # a process does not use its slack
        (1000, (500,) * 9, 1250),  # a quarter of the grant
        (200, (100,) * 9, 300),  # or that of one process, if that is more
        (0, (50,), 0),  # on a GPU that was not granted
    ],
)
def test_each_process_has_slack_and_all_together_have_a_part_of_the_grant(
    granted: int, used: tuple[int, ...], allowed: int
) -> None:
    assert allowed_bytes(usage(granted, *used), 100) == allowed


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(1, 5000), st.integers(0, 300))
def test_many_processes_are_no_way_around_the_grant(
    used: list[int], granted: int, slack: int
) -> None:
    assert allowed_bytes(usage(granted, *used), slack) <= granted + max(slack, granted // 4)
