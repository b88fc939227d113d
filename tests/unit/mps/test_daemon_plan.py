"""Which MPS control daemons a node runs, and which of them can stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.config.settings import ContainerSettings, MemoryMps, MpsNamespaces, Settings
from gpuslice.mps.daemon_plan import (
    DaemonPlan,
    DaemonSpec,
    can_stay,
    may_return,
    plan_daemons,
    uses_mps,
)
from gpuslice.mps.default_limits import default_commands, memory_limit_holds, server_commands
from gpuslice.mps.namespaces import NamespacePlan
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.rules import (
    DaemonLimits,
    MemoryRule,
    NameRule,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)

MPS, TIME_SLICING = SharingStrategy.MPS, SharingStrategy.TIME_SLICING
GPU = "nvidia.com/gpu"


def node(*models: str, capability: tuple[int, int] = (7, 5)) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(f"GPU-{index}", index, index, model, 16384, compute_capability=capability)
        for index, model in enumerate(models)
    )


def settings(*rules: ReplicaRule, gpus: tuple[NameRule, ...] = ()) -> Settings:
    names = (*gpus, NameRule("*", GPU))
    return Settings(
        rules=Rules(gpus=names, replicas=rules), containers=ContainerSettings(mps_root="/m")
    )


def plan_for(
    settings: Settings, own: tuple[Gpu, ...], present: tuple[Gpu, ...] | None = None
) -> DaemonPlan:
    """The daemons for what the agent advertises. `present`: all GPUs, if the node owns some."""
    pools = catalogue(own, settings.rules).pools
    uuids = (gpu.uuid for gpu in (own if present is None else present))
    return plan_daemons(pools, uuids, "570.124.06")


def served(plan: DaemonPlan) -> dict[str, tuple[str, ...]]:
    return {daemon.name: daemon.gpus for daemon in plan.daemons}


def test_a_resource_has_one_daemon_with_its_gpus() -> None:
    plan = plan_for(settings(ReplicaRule(MPS, GPU, 4)), node("T4", "T4"))
    assert served(plan) == {GPU: ("GPU-0", "GPU-1")}
    assert plan.present == {"GPU-0", "GPU-1"}


def test_daemons_are_named_after_renamed_resources_and_resources_of_models() -> None:
    wanted = settings(
        ReplicaRule(MPS, GPU, 2, rename="nvidia.com/mine"),
        ReplicaRule(MPS, "nvidia.com/big", 8),
        gpus=(NameRule("A100*", "nvidia.com/big"),),
    )
    assert served(plan_for(wanted, node("T4", "A100-80", "T4"))) == {
        "nvidia.com/big": ("GPU-1",),
        "nvidia.com/mine": ("GPU-0", "GPU-2"),
    }


def test_whole_and_time_sliced_gpus_have_none() -> None:
    wanted = settings(
        ReplicaRule(MPS, GPU, 4, devices=Selection(references=("1",))),
        ReplicaRule(
            TIME_SLICING, GPU, 4, rename="nvidia.com/t", devices=Selection(references=("2",))
        ),
    )
    assert served(plan_for(wanted, node("T4", "T4", "T4"))) == {GPU: ("GPU-1",)}


def test_a_gpu_that_the_agent_does_not_share_has_none() -> None:
    wanted = settings(ReplicaRule(MPS, GPU, 4), gpus=(NameRule("M60", "nvidia.com/old"),))
    assert served(plan_for(wanted, node("M60", "T4"))) == {GPU: ("GPU-1",)}


def test_a_gpu_that_mps_cannot_limit_has_none_and_a_notice() -> None:
    wanted = settings(ReplicaRule(MPS, GPU, 4))
    mixed = (*node("P4", capability=(6, 1)), node("T4", "T4")[1])
    assert served(plan_for(wanted, mixed)) == {GPU: ("GPU-1",)}
    [notice] = catalogue(mixed, wanted.rules).notices
    assert notice.code is Code.GPU_SKIPPED
    assert "compute capability 7.0" in notice.message


def test_rules_that_the_agent_rejects_are_rejected() -> None:
    with pytest.raises(SlicingError) as rejected:
        plan_for(settings(ReplicaRule(MPS, GPU, 49)), node("T4"))
    assert rejected.value.code is Code.INVALID_REPLICAS


def test_a_gpu_that_another_node_owns_now_must_be_released() -> None:
    present = node("T4", "T4")
    plan = plan_for(settings(ReplicaRule(MPS, GPU, 4)), present[:1], present)
    assert served(plan) == {GPU: ("GPU-0",)}
    assert not can_stay(("GPU-0", "GPU-1"), ("GPU-0",), plan.present)


def test_a_daemon_limits_clients_to_one_replica_unless_they_can_be_merged() -> None:
    rule = ReplicaRule(MPS, GPU, 3, reserve_mib=384, fail_requests_greater_than_one=True)
    [alone] = plan_for(settings(rule), node("T4")).daemons
    assert (alone.limited, alone.max_limits) == (True, (Limits(5333, 33),))
    merging = replace(rule, fail_requests_greater_than_one=False)
    [merged] = plan_for(settings(merging), node("T4")).daemons
    assert (merged.limited, merged.max_limits) == (False, (Limits(16384, 100),))


def test_a_daemon_need_not_limit_clients_that_get_one_replica() -> None:
    rule = ReplicaRule(
        MPS, GPU, 3, fail_requests_greater_than_one=True, daemon_limits=DaemonLimits.NONE
    )
    [daemon] = plan_for(settings(rule), node("T4")).daemons
    assert (daemon.limited, daemon.max_limits) == (False, (Limits(16384, 100),))


def test_default_limits_number_gpus_in_the_order_that_the_daemon_sees() -> None:
    limits = (Limits(4096, 25), Limits(8192, 50))
    wanted = DaemonSpec(GPU, ("a", "b"), limits, limited=True, multi_user=True)
    serves = ("b", "lost", "a")
    assert default_commands(wanted, serves) == (
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 2 4096M",
        "set_default_device_pinned_mem_limit 0 8192M",
    )
    assert server_commands(wanted, serves, "17") == (
        "set_active_thread_percentage 17 50",
        "set_device_pinned_mem_limit 17 2 4096M",
        "set_device_pinned_mem_limit 17 0 8192M",
    )


@pytest.mark.parametrize(
    ("version", "has"),
    [
        ("535.261.03", False),
        ("550.163.01", False),
        ("555.58.02", True),
        ("615.71.09", True),
        ("", False),
        ("unknown", False),
    ],
)
def test_servers_for_several_users_exist_from_driver_555_on(version: str, has: bool) -> None:
    pools = catalogue(node("T4"), settings(ReplicaRule(MPS, GPU, 4)).rules).pools
    [daemon] = plan_daemons(pools, ["GPU-0"], version).daemons
    assert daemon.multi_user is has


def test_settings_without_mps_need_no_daemon() -> None:
    assert not uses_mps(settings(ReplicaRule(TIME_SLICING, GPU, 4)))
    assert uses_mps(settings(ReplicaRule(MPS, GPU, 4)))


UUIDS = st.frozensets(st.sampled_from("abcdef"))


@given(UUIDS, UUIDS, UUIDS)
def test_a_daemon_can_stay_unless_it_lacks_a_gpu_or_holds_one_that_others_use(
    running: frozenset[str], wanted: frozenset[str], present: frozenset[str]
) -> None:
    lacks = any(gpu not in running for gpu in wanted)
    holds = any(gpu in present and gpu not in wanted for gpu in running)
    assert can_stay(tuple(running), tuple(wanted), present) is not (lacks or holds)


@pytest.mark.parametrize(
    ("printed", "mib", "holds"),
    [
        ("512M", 512, True),
        ("3001M", 3001, True),
        ("2G", 3001, True),  # NVIDIA's program prints whole GiB, rounded down
        ("1G", 1024, True),
        ("1G", 3001, False),
        ("4G", 3001, False),
        ("", 512, False),
        ('Unknown command "x"', 512, False),
    ],
)
def test_a_default_limit_is_recognised_when_it_is_read_back(
    printed: str, mib: int, holds: bool
) -> None:
    assert memory_limit_holds(printed, mib) is holds


# Memory slices


def slices(*, managed: bool = True, reserve_mib: int = 0) -> Settings:
    rule = MemoryRule(limited=True, daemon_per_gpu=managed, reserve_mib=reserve_mib)
    return Settings(
        rules=Rules(memory=rule),
        memory_mps=MemoryMps(is_managed=True) if managed else MemoryMps("/run/mps"),
        containers=ContainerSettings(mps_root="/m"),
    )


def test_each_gpu_with_memory_slices_has_a_daemon_of_its_own() -> None:
    plan = plan_for(slices(), node("T4", "T4"))
    assert served(plan) == {"GPU-0": ("GPU-0",), "GPU-1": ("GPU-1",)}
    assert uses_mps(slices())


def test_the_ceiling_of_a_sliced_gpu_is_what_all_its_slices_have() -> None:
    [daemon] = plan_for(slices(reserve_mib=512), node("T4")).daemons
    assert daemon.limited
    assert daemon.max_limits == (Limits(15 * 1024, 100),)
    assert default_commands(daemon, daemon.gpus) == (
        "set_default_active_thread_percentage 100",
        "set_default_device_pinned_mem_limit 0 15360M",
    )


def test_slices_with_an_external_daemon_have_none_of_ours() -> None:
    plan = plan_for(slices(managed=False), node("T4"))
    assert plan.daemons == ()
    assert not uses_mps(slices(managed=False))


def test_slices_and_replicas_have_their_own_daemons() -> None:
    wanted = slices()
    memory = wanted.rules.memory
    assert memory is not None
    rules = replace(
        wanted.rules,
        memory=replace(memory, devices=Selection(references=("1",))),
        replicas=(ReplicaRule(MPS, GPU, 4),),
    )
    plan = plan_for(replace(wanted, rules=rules), node("T4", "T4", "T4"))
    assert served(plan) == {GPU: ("GPU-0", "GPU-2"), "GPU-1": ("GPU-1",)}


def test_a_daemon_for_slices_stays_while_its_gpu_is_missing() -> None:
    both, one = (plan_for(slices(), node(*["T4"] * count)) for count in (2, 1))
    first, second = both.daemons
    assert may_return(second, one)
    # It is there and used in another way, or nothing is sliced any more.
    assert not may_return(first, replace(one, daemons=()))
    assert not may_return(second, replace(one, slices=False))
    assert not may_return(second, DaemonPlan())
    [replicas] = plan_for(settings(ReplicaRule(MPS, GPU, 4)), node("T4")).daemons
    assert not may_return(replicas, replace(one, present=frozenset()))


def namespaces_of(wanted: MpsNamespaces, driver: str) -> list[NamespacePlan | None]:
    memory = MemoryRule(limited=True, daemon_per_gpu=True)
    rules = replace(
        settings(ReplicaRule(MPS, GPU, 2)).rules,
        memory=replace(memory, devices=Selection(references=("1",))),
    )
    pools = catalogue(node("T4", "T4"), rules).pools
    plan = plan_daemons(pools, ["GPU-0", "GPU-1"], driver, wanted)
    assert [daemon.slices for daemon in plan.daemons] == [False, True]
    return [daemon.namespaces for daemon in plan.daemons]


def test_daemons_for_slices_have_namespaces_from_driver_615_on() -> None:
    auto, off = MpsNamespaces.AUTO, MpsNamespaces.OFF
    [replicas, slices] = namespaces_of(auto, "615.71.09")
    assert replicas is None
    # A program that finds the wrong socket gets one slice and few threads.
    assert slices == NamespacePlan(required=False, others=Limits(1024, 10))
    assert namespaces_of(off, "615.71.09") == namespaces_of(auto, "595.58.03") == [None, None]
    [_, slices] = namespaces_of(MpsNamespaces.REQUIRE, "615.71.09")
    assert slices is not None
    assert slices.required
