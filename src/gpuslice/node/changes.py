"""The difference of two snapshots: what changed, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuslice.codes import Code
from gpuslice.gpus.faults import Fault
from gpuslice.node.snapshot import Problem, Snapshot
from gpuslice.slicing.pool import Part, Pool
from gpuslice.slicing.tiers import weakest
from gpuslice.telemetry.logs import LogLevel


@dataclass(frozen=True, slots=True)
class Change:
    code: Code
    event: str
    level: LogLevel = LogLevel.INFO
    fields: Mapping[str, object] = field(default_factory=dict)


def changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """In the order in which an operator wants to read them."""
    yield from _settings(before, after)
    yield from _config_problems(before, after)
    yield from _notices(before, after)
    yield from _binding(before, after)
    yield from _pools(before, after)
    yield from _tiers(before, after)
    yield from _faults(before, after)
    yield from _daemons(before, after)


def _settings(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    settings = after.settings
    # Settings that were rejected in between are in force again: say so.
    recovered = bool(before.config_problems) and not after.config_problems
    if settings is not None and (settings != before.settings or recovered):
        yield Change(Code.SETTINGS_APPLIED, "applied settings", fields=settings.describe())


def _config_problems(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for problem in after.config_problems:
        if problem not in before.config_problems:
            yield Change(
                problem.code,
                "configuration rejected, keeping the last good settings",
                LogLevel.ERROR,
                {"reason": problem.message},
            )


def _notices(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for notice in after.notices:
        if notice not in before.notices:
            yield Change(notice.code, notice.message, LogLevel.WARNING)


def _binding(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    binding = after.binding
    if binding is None or binding == before.binding:
        return
    if binding.by_cdi:
        yield Change(Code.BOUND_BY_CDI, "containers get their limits by CDI")
        return
    yield Change(
        Code.BOUND_BY_ENVIRONMENT,
        "containers get their limits by environment variables, which pods can override",
        LogLevel.INFO if binding.is_chosen else LogLevel.WARNING,
        {"reason": binding.reason},
    )


def _tiers(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """One line for the node: the tier of each resource, and the weakest of them."""
    old, new = before.tiers, after.tiers
    limits = after.driver_limits
    if not new or limits is None or (old == new and before.driver_limits == limits):
        return
    node, known = weakest(new.values()), weakest(old.values())
    assert node is not None
    lowered = known is not None and known is not node and weakest((node, known)) is node
    reason = {} if limits.work else {"without_driver_limits": limits.reason}
    yield Change(
        Code.LIMITS_TIER,
        "how firmly the limits of containers hold",
        LogLevel.WARNING if lowered else LogLevel.INFO,
        {
            "tier": node.value,
            "resources": ",".join(f"{name}={tier.value}" for name, tier in sorted(new.items())),
            **reason,
        },
    )


def _pools(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    old = {pool.resource: pool for pool in before.pools}
    for pool in after.pools:
        known = old.pop(pool.resource, None)
        if known != pool:
            yield from _advertised(known, pool)
    for resource in old:
        yield Change(
            Code.RESOURCE_WITHDRAWN,
            "resource is no longer advertised",
            fields={"resource": resource},
        )


def _advertised(before: Pool | None, pool: Pool) -> Iterator[Change]:
    if before is not None and before.unit != pool.unit:
        yield Change(
            Code.MEMORY_UNIT_CHANGED,
            "the memory unit changed: running pods keep what they hold in the old unit",
            LogLevel.WARNING,
            {"resource": pool.resource, "unit": pool.unit},
        )
    known = () if before is None else before.parts
    for part in pool.parts:
        if part not in known:
            yield Change(
                Code.ADVERTISED,
                "advertising",
                fields={
                    "resource": pool.resource,
                    "index": part.device.index,
                    "uuid": part.device.uuid,
                    "model": part.device.model,
                    "devices": part.count,
                    **_limit_fields(part),
                },
            )


def _limit_fields(part: Part) -> dict[str, object]:
    """What MPS limits a container with one share to."""
    if part.daemon is None:
        return {}
    limits = part.share.times(1)
    threads = "none" if limits.threads_percent is None else limits.threads_percent
    return {"memory_mib": limits.memory_mib, "threads_percent": threads}


def _faults(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for fault in after.faults:
        if fault not in before.faults:
            yield Change(fault.code, "GPU is unhealthy", LogLevel.ERROR, _fault_fields(fault))
    for fault in before.faults:
        if fault not in after.faults:
            yield Change(
                Code.FAULT_CLEARED, "GPU fault cleared", LogLevel.INFO, _fault_fields(fault)
            )


def _fault_fields(fault: Fault) -> dict[str, object]:
    instances = {
        "gpu_instance": fault.gpu_instance,
        "compute_instance": fault.compute_instance,
    }
    return {
        "uuid": fault.gpu or "all",
        "reason": fault.message,
        **{name: number for name, number in instances.items() if number is not None},
    }


def _daemons(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for name, state in after.daemons.items():
        known = before.daemons.get(name)
        if state.problem is not None and (known is None or known.problem != state.problem):
            yield _unhealthy_daemon(name, state.problem)
        elif state.problem is None and known is not None and known.problem is not None:
            yield Change(
                Code.MPS_AVAILABLE,
                "MPS control daemon answers again: its devices are healthy",
                fields={"daemon": name},
            )


def _unhealthy_daemon(name: str, problem: Problem) -> Change:
    return Change(
        problem.code,
        "MPS control daemon does not answer: its devices are unhealthy",
        LogLevel.ERROR,
        {"daemon": name, "reason": problem.message},
    )
