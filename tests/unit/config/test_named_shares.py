"""Named shares in the configuration file."""

from __future__ import annotations

import json

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.slicing.rules import NamedShare, Overcommit, ReplicaRule
from gpuslice.slicing.threads import Multiprocessors, Percent, ThreadStrategy

from .conftest import Read

ISSUED = "[{name: large, threads: 70%, memory: 4GiB}, {name: small, threads: 30%, memory: 8GiB}]"


def file(shares: str, *, section: str = "", entry: str = "") -> str:
    resources = f"[{{name: gpu, {entry}shares: {shares}}}]"
    return f"flags: {{mpsRoot: /m}}\nsharing: {{mps: {{{section}resources: {resources}}}}}"


def only_rule(read: Read, text: str) -> ReplicaRule:
    [rule] = read(text).rules.replicas
    return rule


def test_shares_have_memory_and_threads_of_their_own(read: Read) -> None:
    rule = only_rule(read, file(ISSUED))
    assert rule.shares == (
        NamedShare("large", 4096, Percent(70)),
        NamedShare("small", 8192, Percent(30)),
    )
    assert rule.replicas == 2
    assert rule.resources == ("nvidia.com/gpu.large", "nvidia.com/gpu.small")
    assert rule.overcommit is Overcommit.REFUSE
    assert not rule.limited_by_daemon


def test_a_share_can_be_counted_in_sms_and_exist_several_times(read: Read) -> None:
    rule = only_rule(read, file("[{name: s, threads: 20 SMs, memory: 512MiB, count: 3}]"))
    assert rule.shares == (NamedShare("s", 512, Multiprocessors(20), 3),)
    assert rule.replicas == 3


def test_shares_without_threads_have_those_of_their_entry(read: Read) -> None:
    shares = "[{name: a, memory: 1GiB}, {name: b, memory: 1GiB, threads: none}]"
    assert [one.threads for one in only_rule(read, file(shares)).shares] == [
        ThreadStrategy.PROPORTIONAL,
        ThreadStrategy.NONE,
    ]
    uniform = only_rule(read, file(shares, entry="threads: uniform, "))
    assert [one.threads for one in uniform.shares] == [ThreadStrategy.UNIFORM, ThreadStrategy.NONE]


def test_shares_have_the_new_name_of_their_resource(read: Read) -> None:
    renamed = only_rule(read, file(ISSUED, entry="rename: part, "))
    assert renamed.resources == ("nvidia.com/part.large", "nvidia.com/part.small")
    by_default = only_rule(read, file(ISSUED, section="renameByDefault: true, "))
    assert by_default.resources == ("nvidia.com/gpu.shared.large", "nvidia.com/gpu.shared.small")


@pytest.mark.parametrize("policy", Overcommit)
def test_the_policy_for_sums_that_exceed_the_gpu(read: Read, policy: Overcommit) -> None:
    rule = only_rule(read, file(ISSUED, section=f"overcommit: {policy.value}, "))
    assert rule.overcommit is policy


@pytest.mark.parametrize("policy", Overcommit)
def test_the_description_of_shares_is_a_valid_file(read: Read, policy: Overcommit) -> None:
    shares = "[{name: a, memory: 1GiB, count: 2}, {name: b, memory: 3MiB, threads: 20 SMs}]"
    settings = read(file(shares, section=f"overcommit: {policy.value}, daemonLimits: none, "))
    described = settings.describe()
    del described["agent"]
    assert read(json.dumps(described)) == settings


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (file("[]"), "resources[0].shares"),
        (file("[{memory: 1GiB}]"), "resources[0].shares[0].name"),
        (file("[{name: a}]"), "resources[0].shares[0].memory"),
        (file("[{name: a, memory: 4}]"), "resources[0].shares[0].memory"),
        (file("[{name: a, memory: 0GiB}]"), "resources[0].shares[0].memory"),
        (file("[{name: a, memory: 1GiB, threads: 70}]"), "resources[0].shares[0].threads"),
        (file("[{name: a, memory: 1GiB, threads: 0%}]"), "resources[0].shares[0].threads"),
        (file("[{name: a, memory: 1GiB, count: 0}]"), "resources[0].shares[0].count"),
        (file("[{name: A_b, memory: 1GiB}]"), "resources[0].shares[0].name"),
        (file(f"[{{name: {'a' * 60}, memory: 1GiB}}]"), "resources[0].shares[0].name"),
        (
            file("[{name: a, memory: 1GiB}, {name: a, memory: 2GiB}]"),
            "resources[0].shares[1].name",
        ),
        (file(ISSUED, entry="replicas: 2, "), "resources[0].replicas"),
        (file(ISSUED, section="daemonLimits: replica, "), "daemonLimits"),
        (file(ISSUED, section="overcommit: maybe, "), "overcommit"),
    ],
)
def test_errors_name_the_key(read: Read, text: str, field: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        read(text)
    assert rejected.value.field == f"sharing.mps.{field}"


def test_time_slicing_has_no_shares(read: Read) -> None:
    with pytest.raises(ConfigError, match=r"unknown key.*shares"):
        read(file(ISSUED).replace("{mps:", "{timeSlicing:"))


def test_a_share_and_time_slicing_cannot_have_the_same_name(read: Read) -> None:
    with pytest.raises(ConfigError, match="same resource name"):
        read(
            "flags: {mpsRoot: /m}\nsharing:\n"
            f"  mps: {{resources: [{{name: gpu, devices: [0], shares: {ISSUED}}}]}}\n"
            "  timeSlicing: "
            "{resources: [{name: gpu, devices: [1], replicas: 2, rename: gpu.large}]}\n"
        )


def test_a_share_and_memory_units_cannot_have_the_same_name(read: Read) -> None:
    memory = "memory: {resource: nvidia.com/gpu.large, devices: [1]}, mps:"
    with pytest.raises(ConfigError, match="use another name for memory units"):
        read(file(ISSUED, entry="devices: [0], ").replace("{mps:", "{" + memory))
