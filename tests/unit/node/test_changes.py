"""The difference of two snapshots says what changed and why."""

from __future__ import annotations

from dataclasses import replace

from gpuslice.codes import Code
from gpuslice.config.settings import Settings
from gpuslice.gpus.faults import Fault
from gpuslice.node.changes import Change, changes
from gpuslice.node.snapshot import DaemonState, DriverLimits, Problem, Snapshot
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule, NamedShare, ReplicaRule, Rules, SharingStrategy
from gpuslice.slicing.threads import Percent, ThreadStrategy
from gpuslice.slicing.units import MemoryUnit
from gpuslice.telemetry.logs import LogLevel

GPUS = [Gpu(f"GPU-{n}", n, n, "Tesla T4", 15360, (7, 5)) for n in range(2)]
XID = Fault(Code.XID, "XID 79", "GPU-1", xid=79)
INVALID = Problem(Code.CONFIGURATION_INVALID, "wrong")
DOWN = Problem(Code.MPS_UNAVAILABLE, "no answer")


def pools(gpus: list[Gpu], rules: Rules) -> tuple[Pool, ...]:
    return catalogue(gpus, rules).pools


def difference(before: Snapshot, after: Snapshot) -> list[Change]:
    return list(changes(before, after))


def codes(before: Snapshot, after: Snapshot) -> list[Code]:
    return [change.code for change in changes(before, after)]


def test_equal_snapshots_have_no_difference() -> None:
    one = Snapshot(
        settings=Settings(),
        pools=pools(GPUS, Rules()),
        faults=(XID,),
        notices=(Notice(Code.GPU_SKIPPED, "x"),),
        daemons={"one": DaemonState(DOWN)},
        config_problems=(INVALID,),
    )
    assert codes(one, replace(one)) == []


def test_each_new_part_of_a_pool_is_advertised_once() -> None:
    one, both = pools(GPUS[:1], Rules()), pools(GPUS, Rules())
    [first] = difference(Snapshot(), Snapshot(pools=one))
    assert first.code is Code.ADVERTISED
    assert first.fields == {
        "resource": "nvidia.com/gpu",
        "index": "0",
        "uuid": "GPU-0",
        "model": "Tesla T4",
        "devices": 1,
    }
    [second] = difference(Snapshot(pools=one), Snapshot(pools=both))
    assert second.fields["uuid"] == "GPU-1"
    assert difference(Snapshot(pools=both), Snapshot(pools=one)) == []


def test_what_each_share_is_limited_to_is_in_the_log() -> None:
    def advertised(*shares: NamedShare) -> list[tuple[object, ...]]:
        rule = ReplicaRule(SharingStrategy.MPS, "nvidia.com/gpu", len(shares), shares=shares)
        found = difference(Snapshot(), Snapshot(pools=pools(GPUS[:1], Rules(replicas=(rule,)))))
        fields = ("resource", "memory_mib", "threads_percent")
        return [tuple(change.fields[name] for name in fields) for change in found]

    large, small = NamedShare("l", 4096, Percent(70)), NamedShare("s", 8192, ThreadStrategy.NONE)
    assert advertised(large, small) == [
        ("nvidia.com/gpu.l", 4096, 70),
        ("nvidia.com/gpu.s", 8192, "none"),
    ]


def test_a_pool_that_is_gone_is_withdrawn() -> None:
    memory = pools(GPUS, Rules(memory=MemoryRule()))
    found = difference(Snapshot(pools=memory), Snapshot(pools=pools(GPUS, Rules())))
    assert [change.code for change in found] == [
        Code.ADVERTISED,
        Code.ADVERTISED,
        Code.RESOURCE_WITHDRAWN,
    ]
    assert found[-1].fields == {"resource": "aliyun.com/gpu-mem"}


def test_another_memory_unit_is_a_warning() -> None:
    gib = pools(GPUS, Rules(memory=MemoryRule()))
    larger = pools(GPUS, Rules(memory=MemoryRule(unit=MemoryUnit(2048))))
    found = difference(Snapshot(pools=gib), Snapshot(pools=larger))
    assert found[0].code is Code.MEMORY_UNIT_CHANGED
    assert found[0].level is LogLevel.WARNING


def test_a_fault_is_an_error_with_its_cause_and_its_end_is_said_too() -> None:
    [begins] = difference(Snapshot(), Snapshot(faults=(XID,)))
    assert (begins.code, begins.level) == (Code.XID, LogLevel.ERROR)
    assert begins.fields == {"uuid": "GPU-1", "reason": "XID 79"}
    [ends] = difference(Snapshot(faults=(XID,)), Snapshot())
    assert (ends.code, ends.level) == (Code.FAULT_CLEARED, LogLevel.INFO)
    instance = replace(XID, gpu=None, gpu_instance=3, compute_instance=0)
    [change] = difference(Snapshot(), Snapshot(faults=(instance,)))
    assert change.fields == {
        "uuid": "all",
        "reason": "XID 79",
        "gpu_instance": 3,
        "compute_instance": 0,
    }


def test_a_daemon_that_stops_and_one_that_answers_again_are_said() -> None:
    up, down = (
        Snapshot(daemons={"one": DaemonState()}),
        Snapshot(daemons={"one": DaemonState(DOWN)}),
    )
    assert codes(Snapshot(), up) == []
    assert codes(Snapshot(), down) == [Code.MPS_UNAVAILABLE]
    assert codes(up, down) == [Code.MPS_UNAVAILABLE]
    assert codes(down, up) == [Code.MPS_AVAILABLE]
    [change] = difference(up, down)
    assert change.fields == {"daemon": "one", "reason": "no answer"}


def test_a_rejected_configuration_is_an_error_and_its_end_shows_the_settings() -> None:
    good = Snapshot(settings=Settings())
    bad = replace(good, config_problems=(INVALID,))
    [change] = difference(good, bad)
    assert (change.code, change.level) == (Code.CONFIGURATION_INVALID, LogLevel.ERROR)
    assert change.fields == {"reason": "wrong"}
    assert codes(bad, good) == [Code.SETTINGS_APPLIED]
    assert codes(good, replace(good, settings=Settings(fail_on_init_error=False))) == [
        Code.SETTINGS_APPLIED
    ]


def test_a_notice_is_a_warning_when_it_appears() -> None:
    one, two = Notice(Code.GPU_SKIPPED, "one"), Notice(Code.GPU_SKIPPED, "two")
    [change] = difference(Snapshot(notices=(one,)), Snapshot(notices=(one, two)))
    assert (change.code, change.event, change.level) == (
        Code.GPU_SKIPPED,
        "two",
        LogLevel.WARNING,
    )


def test_the_tier_is_reported_when_it_is_known_and_when_it_changes() -> None:
    unknown = Snapshot(pools=pools(GPUS, Rules(memory=MemoryRule(limited=True))))
    without = replace(unknown, driver_limits=DriverLimits(work=False, reason="driver 570"))
    assert codes(unknown, without) == []
    lower = replace(without, watchdog_acts=False)
    [change] = difference(without, lower)
    resource = MemoryRule().resource
    assert (change.code, change.level) == (Code.LIMITS_TIER, LogLevel.INFO)
    assert change.fields == {
        "tier": "environment",
        "resources": f"{resource}=environment",
        "without_driver_limits": "driver 570",
    }
    firm = replace(lower, driver_limits=DriverLimits(work=True))
    [change] = difference(lower, firm)
    assert change.fields == {"tier": "driver", "resources": f"{resource}=driver"}
    [change] = difference(firm, lower)
    assert change.level is LogLevel.WARNING
    [change] = difference(lower, replace(lower, watchdog_acts=True))
    assert change.fields["tier"] == "watched"
