"""Usage, grants and time -> what to do about containers that use too much. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.watchdog.attribution import Container, ProcessUsage, Usage
from gpuslice.watchdog.process_files import ProcessId

Key = tuple[Container, str]


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
    # What a container may use in addition to its grant.
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
        if usage.gpu in unread_gpus or usage.used_bytes <= usage.granted_bytes + policy.slack_bytes:
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


def surplus(usage: Usage, slack_bytes: int) -> tuple[ProcessUsage, ...]:
    """The newest processes that suffice: those that were there first keep their memory."""
    over = usage.used_bytes - usage.granted_bytes - slack_bytes
    chosen = []
    for one in reversed(usage.processes):
        if over <= 0:
            break
        if one.used_bytes > 0:
            chosen.append(one)
            over -= one.used_bytes
    # A small one need not end if an older and larger one must.
    spare = -over
    kept = []
    for one in chosen:
        if one.used_bytes <= spare:
            spare -= one.used_bytes
        else:
            kept.append(one)
    return tuple(kept)


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
