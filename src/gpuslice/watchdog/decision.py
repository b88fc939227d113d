"""Usage, grants and time -> what to do about containers that use too much. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.watchdog.attribution import Container, ProcessUsage, Usage
from gpuslice.watchdog.process_files import ProcessId

Key = tuple[Container, str]

# The slack of all processes together is at most this part of the grant, or that of one process.
_LARGEST_SLACK_PART = 4


class Step(Enum):
    """What is done about a process. Each step waits for the one before."""

    TERMINATE = "terminate"  # MPS ends its contexts, without harm to other clients
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Policy:
    mode: WatchdogMode = WatchdogMode.REPORT
    # How long a container may use too much.
    grace_seconds: float = 10.0
    # Between two steps against one process, and between two attempts to evict a pod.
    step_seconds: float = 5.0
    # What each process may use in addition to the grant of its container: see `allowed_bytes`.
    slack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """A container that uses too much of one GPU, since `since`."""

    since: float
    # The last step against each process, and when.
    steps: Mapping[ProcessId, tuple[Step, float]] = field(default_factory=dict)
    evicted_at: float | None = None


Violations = Mapping[Key, Violation]


@dataclass(frozen=True, slots=True)
class Began:
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ended:
    container: Container
    gpu: str


@dataclass(frozen=True, slots=True)
class EndProcess:
    usage: Usage
    process: ProcessId
    step: Step


@dataclass(frozen=True, slots=True)
class Evict:
    usage: Usage


Action = Began | Ended | EndProcess | Evict


@dataclass(frozen=True, slots=True)
class Decision:
    violations: Violations
    actions: tuple[Action, ...]


def decide(
    before: Violations,
    usages: Iterable[Usage],
    policy: Policy,
    now: float,
    unread_gpus: Collection[str] = (),
) -> Decision:
    """`unread_gpus` could not be read now: what is known about them stays, and nothing is done."""
    after: dict[Key, Violation] = {}
    actions: list[Action] = []
    for usage in usages:
        if usage.gpu in unread_gpus or _fits(usage, usage.processes, policy.slack_bytes):
            continue
        key = usage.container, usage.gpu
        known = before.get(key)
        if known is None:
            actions.append(Began(usage))
            known = Violation(now)
        after[key], more = _continued(known, usage, policy, now)
        actions += more
    for key, violation in before.items():
        if key in after:
            continue
        container, gpu = key
        if gpu in unread_gpus:
            after[key] = violation
        else:
            actions.append(Ended(container, gpu))
    return Decision(after, tuple(actions))


def allowed_bytes(usage: Usage, slack_bytes: int) -> int:
    """What the container may use.

    Each process adds what it uses, up to the slack: the driver may count memory of a process that
    MPS does not count. All processes together add at most a part of the grant, so that many small
    processes are no way around it. Without a grant of this GPU, nothing is allowed.
    """
    return _allowed(usage.granted_bytes, usage.processes, slack_bytes)


def surplus(usage: Usage, slack_bytes: int) -> tuple[ProcessUsage, ...]:
    """The newest processes that suffice: those that were there first keep their memory."""
    left = list(usage.processes)
    ended: list[ProcessUsage] = []
    while left and not _fits(usage, left, slack_bytes):
        newest = left.pop()
        if newest.used_bytes > 0:
            ended.append(newest)
    # A small one need not end if an older and larger one must.
    for one in list(ended):
        if _fits(usage, [*left, one], slack_bytes):
            left.append(one)
            ended.remove(one)
    return tuple(ended)


def _fits(usage: Usage, processes: Sequence[ProcessUsage], slack_bytes: int) -> bool:
    used = sum(one.used_bytes for one in processes)
    return used <= _allowed(usage.granted_bytes, processes, slack_bytes)


def _allowed(granted_bytes: int, processes: Iterable[ProcessUsage], slack_bytes: int) -> int:
    if not granted_bytes:
        return 0
    slack = sum(min(one.used_bytes, slack_bytes) for one in processes)
    return granted_bytes + min(slack, max(slack_bytes, granted_bytes // _LARGEST_SLACK_PART))


def _continued(
    known: Violation, usage: Usage, policy: Policy, now: float
) -> tuple[Violation, list[Action]]:
    if now - known.since < policy.grace_seconds:
        return known, []
    if policy.mode is WatchdogMode.EVICT:
        return _evicted(known, usage, policy, now)
    if policy.mode is WatchdogMode.TERMINATE:
        steps = dict(known.steps)
        ended = list(_end_processes(steps, usage, policy, now))
        # Steps against processes that have ended are forgotten.
        running = {one.process for one in usage.processes}
        kept = {process: step for process, step in steps.items() if process in running}
        return Violation(known.since, kept, known.evicted_at), ended
    return known, []


def _evicted(
    known: Violation, usage: Usage, policy: Policy, now: float
) -> tuple[Violation, list[Action]]:
    if known.evicted_at is not None and now - known.evicted_at < policy.step_seconds:
        return known, []
    return Violation(known.since, known.steps, now), [Evict(usage)]


def _end_processes(
    steps: dict[ProcessId, tuple[Step, float]], usage: Usage, policy: Policy, now: float
) -> Iterator[Action]:
    for one in surplus(usage, policy.slack_bytes):
        last = steps.get(one.process)
        if last is not None and now - last[1] < policy.step_seconds:
            continue
        step = Step.TERMINATE if last is None else Step.KILL
        steps[one.process] = step, now
        yield EndProcess(usage, one.process, step)
