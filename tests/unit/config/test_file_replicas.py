"""Replicas in the configuration file."""

from __future__ import annotations

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.slicing.rules import ALL, ReplicaRule, Selection, SharingStrategy
from gpuslice.slicing.threads import Multiprocessors, Percent, ThreadRule, ThreadStrategy

from .conftest import Read

TIME, MPS = SharingStrategy.TIME_SLICING, SharingStrategy.MPS
UUID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


def rules(read: Read, section: str, strategy: str = "timeSlicing") -> tuple[ReplicaRule, ...]:
    return read(f"flags: {{mpsRoot: /m}}\nsharing: {{{strategy}: {section}}}").rules.replicas


@pytest.mark.parametrize(
    ("section", "strategy", "expected"),
    [
        (
            "{resources: [{name: nvidia.com/gpu, replicas: 10}]}", "timeSlicing",
            ReplicaRule(TIME, "nvidia.com/gpu", 10),
        ),
        (
            "{resources: [{name: gpu, replicas: 10}]}", "timeSlicing",
            ReplicaRule(TIME, "nvidia.com/gpu", 10),
        ),
        (
            "{resources: [{name: mig-1g.5gb, replicas: 2}]}", "timeSlicing",
            ReplicaRule(TIME, "nvidia.com/mig-1g.5gb", 2),
        ),
        (
            "{renameByDefault: true, resources: [{name: gpu, replicas: 2}]}", "timeSlicing",
            ReplicaRule(TIME, "nvidia.com/gpu", 2, "nvidia.com/gpu.shared"),
        ),
        (
            "{renameByDefault: true, resources: [{name: gpu, rename: part, replicas: 2}]}",
            "timeSlicing", ReplicaRule(TIME, "nvidia.com/gpu", 2, "nvidia.com/part"),
        ),
        (
            "{failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 2}]}",
            "timeSlicing",
            ReplicaRule(TIME, "nvidia.com/gpu", 2, fail_requests_greater_than_one=True),
        ),
        (
            "{resources: [{name: gpu, replicas: 2}]}", "mps",
            ReplicaRule(MPS, "nvidia.com/gpu", 2, fail_requests_greater_than_one=True),
        ),
        (
            "{failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}", "mps",
            ReplicaRule(MPS, "nvidia.com/gpu", 2, fail_requests_greater_than_one=False),
        ),
        (
            "{resources: [{name: gpu, replicas: 1}]}", "mps",
            ReplicaRule(MPS, "nvidia.com/gpu", 1, fail_requests_greater_than_one=True),
        ),
        (
            "{reserve: 2GiB, resources: [{name: gpu, replicas: 2}]}", "mps",
            ReplicaRule(
                MPS, "nvidia.com/gpu", 2, fail_requests_greater_than_one=True, reserve_mib=2048
            ),
        ),
        (
            "{reserve: 0, resources: [{name: gpu, replicas: 2}]}", "mps",
            ReplicaRule(MPS, "nvidia.com/gpu", 2, fail_requests_greater_than_one=True),
        ),
    ],
)  # fmt: skip
def test_replicas(read: Read, section: str, strategy: str, expected: ReplicaRule) -> None:
    assert rules(read, section, strategy) == (expected,)


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("proportional", ThreadStrategy.PROPORTIONAL),
        ("uniform", ThreadStrategy.UNIFORM),
        ("uniform-half", ThreadStrategy.UNIFORM_HALF),
        ("none", ThreadStrategy.NONE),
        ("30%", Percent(30)),
        ("20 SMs", Multiprocessors(20)),
        ("1 SM", Multiprocessors(1)),
        ("sm_partition", ThreadStrategy.SM_PARTITION),
    ],
)
def test_threads_of_replicas(read: Read, yaml: str, expected: ThreadRule) -> None:
    [rule] = rules(read, f"{{resources: [{{name: gpu, replicas: 2, threads: {yaml}}}]}}", "mps")
    assert rule.threads == expected


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("threads: sm_partition, shares: [{name: a, memory: 1GiB}]", "threads"),
        ("shares: [{name: a, memory: 1GiB, threads: sm_partition}]", "shares[0].threads"),
    ],
)
def test_named_shares_have_no_static_partitions(read: Read, entry: str, field: str) -> None:
    with pytest.raises(ConfigError, match="only memory units and replicas") as rejected:
        rules(read, f"{{resources: [{{name: gpu, {entry}}}]}}", "mps")
    assert rejected.value.field == f"sharing.mps.resources[0].{field}"


@pytest.mark.parametrize(
    ("section", "limited"),
    [
        ("", True),
        ("daemonLimits: replica, ", True),
        ("daemonLimits: none, ", False),
        ("failRequestsGreaterThanOne: false, ", False),
        ("failRequestsGreaterThanOne: false, daemonLimits: none, ", False),
    ],
)
def test_whether_the_daemon_limits_clients_to_one_replica(
    read: Read, section: str, limited: bool
) -> None:
    [rule] = rules(read, f"{{{section}resources: [{{name: gpu, replicas: 2}}]}}", "mps")
    assert rule.limited_by_daemon is limited


@pytest.mark.parametrize(
    "section",
    ["daemonLimits: replica, failRequestsGreaterThanOne: false", "daemonLimits: half"],
)
def test_limits_of_the_daemon_that_are_not_valid(read: Read, section: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        rules(read, f"{{{section}, resources: [{{name: gpu, replicas: 2}}]}}", "mps")
    assert rejected.value.field == "sharing.mps.daemonLimits"


@pytest.mark.parametrize("yaml", ["30", "0.3", "true", "0%", "101%", "0 SMs", "half", "20 sm"])
def test_threads_that_are_neither_a_strategy_nor_an_amount(read: Read, yaml: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        rules(read, f"{{resources: [{{name: gpu, replicas: 2, threads: {yaml}}}]}}", "mps")
    assert rejected.value.field == "sharing.mps.resources[0].threads"


def test_replicas_by_time_slicing_have_no_limit_on_threads(read: Read) -> None:
    with pytest.raises(ConfigError, match=r"unknown key.*threads"):
        rules(read, "{resources: [{name: gpu, replicas: 2, threads: uniform}]}")


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("all", ALL),
        ("2", Selection(count=2)),
        ("[0, 3]", Selection(references=("0", "3"))),
        # YAML 1.1 would read the second as the number sixty.
        ("[0:1, 1:0]", Selection(references=("0:1", "1:0"))),
        ('["0", "1:0"]', Selection(references=("0", "1:0"))),
        (f"[GPU-{UUID}]", Selection(references=(f"GPU-{UUID}",))),
        (f"[MIG-{UUID}]", Selection(references=(f"MIG-{UUID}",))),
        (f"[MIG-GPU-{UUID}/1/0]", Selection(references=(f"MIG-GPU-{UUID}/1/0",))),
        (f"[GPU-{UUID.upper()}]", Selection(references=(f"GPU-{UUID}",))),
        ("[0, 00, 0]", Selection(references=("0",))),
    ],
)
def test_devices_of_a_replica_rule(read: Read, yaml: str, expected: Selection) -> None:
    [rule] = rules(read, f"{{resources: [{{name: gpu, replicas: 2, devices: {yaml}}}]}}")
    assert rule.devices == expected


def test_both_strategies_can_be_used_for_different_devices(read: Read) -> None:
    settings = read(
        "flags: {mpsRoot: /m}\n"
        "sharing:\n"
        "  timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}\n"
        "  mps: {resources: [{name: gpu, rename: gpu.mps, devices: [1], replicas: 2}]}\n"
    )
    assert [rule.strategy for rule in settings.rules.replicas] == [TIME, MPS]
