"""Which MPS daemons a node has, and which of them may stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.mps.daemon_plan import MpsPlan, Wanted, plan_daemons, shares_by_mps, still_serves
from gpuslice.mps.default_limits import default_commands, server_commands
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.rules import NameRule, ReplicaRule, Rules, Selection, SharingStrategy

MPS, TIME_SLICING = SharingStrategy.MPS, SharingStrategy.TIME_SLICING
GPU = "nvidia.com/gpu"


def node(*models: str, capability: tuple[int, int] = (7, 5)) -> Inventory:
    gpus = tuple(
        Gpu(f"GPU-{index}", index, index, model, 16384, compute_capability=capability)
        for index, model in enumerate(models)
    )
    return Inventory("570.1", gpus)


def settings(*rules: ReplicaRule, gpus: tuple[NameRule, ...] = ()) -> Settings:
    names = (*gpus, NameRule("*", GPU))
    return Settings(
        rules=Rules(gpus=names, replicas=rules), containers=ContainerSettings(mps_root="/m")
    )


def served(plan: MpsPlan) -> dict[str, tuple[str, ...]]:
    return {daemon.resource: daemon.gpus for daemon in plan.daemons}


def test_a_resource_has_one_daemon_with_its_gpus() -> None:
    plan = plan_daemons(settings(ReplicaRule(MPS, GPU, 4)), node("T4", "T4"))
    assert served(plan) == {GPU: ("GPU-0", "GPU-1")}
    assert plan.present == {"GPU-0", "GPU-1"}


def test_new_names_and_names_by_model_count() -> None:
    wanted = settings(
        ReplicaRule(MPS, GPU, 2, rename="nvidia.com/mine"),
        ReplicaRule(MPS, "nvidia.com/big", 8),
        gpus=(NameRule("A100*", "nvidia.com/big"),),
    )
    assert served(plan_daemons(wanted, node("T4", "A100-80", "T4"))) == {
        "nvidia.com/big": ("GPU-1",),
        "nvidia.com/mine": ("GPU-0", "GPU-2"),
    }


def test_gpus_that_are_whole_or_time_sliced_have_none() -> None:
    wanted = settings(
        ReplicaRule(MPS, GPU, 4, devices=Selection(references=("1",))),
        ReplicaRule(
            TIME_SLICING, GPU, 4, rename="nvidia.com/t", devices=Selection(references=("2",))
        ),
    )
    assert served(plan_daemons(wanted, node("T4", "T4", "T4"))) == {GPU: ("GPU-1",)}


def test_what_the_agent_does_not_offer_has_none_and_a_note() -> None:
    wanted = settings(ReplicaRule(MPS, GPU, 4), gpus=(NameRule("M60", "nvidia.com/old"),))
    plan = plan_daemons(wanted, node("M60", "T4"))
    assert served(plan) == {GPU: ("GPU-1",)}
    mixed = Inventory("570.1", (*node("P4", capability=(6, 1)).gpus, node("T4", "T4").gpus[1]))
    plan = plan_daemons(settings(ReplicaRule(MPS, GPU, 4)), mixed)
    assert served(plan) == {GPU: ("GPU-1",)}
    assert any("MPS has limits from 7.0 on" in note for note in plan.notes)


def test_what_the_agent_refuses_is_refused() -> None:
    with pytest.raises(SlicingError, match="maximum allowed replicas exceeded"):
        plan_daemons(settings(ReplicaRule(MPS, GPU, 49)), node("T4"))


def test_a_gpu_that_another_node_was_given_is_there_and_has_to_be_let_go() -> None:
    everything = node("T4", "T4")
    own = Inventory("570.1", everything.gpus[:1])
    plan = plan_daemons(settings(ReplicaRule(MPS, GPU, 4)), own, everything)
    assert served(plan) == {GPU: ("GPU-0",)}
    assert not still_serves(("GPU-0", "GPU-1"), ("GPU-0",), plan.present)


def test_the_most_that_a_container_gets_is_one_replica_or_all_if_they_may_be_merged() -> None:
    rule = ReplicaRule(MPS, GPU, 3, reserve_mib=384, fail_requests_greater_than_one=True)
    [alone] = plan_daemons(settings(rule), node("T4")).daemons
    assert (alone.merges, alone.most) == (False, (Limits(5333, 33),))
    merging = replace(rule, fail_requests_greater_than_one=False)
    [merged] = plan_daemons(settings(merging), node("T4")).daemons
    assert (merged.merges, merged.most) == (True, (Limits(15999, 100),))


def test_default_limits_are_by_the_order_that_the_daemon_sees() -> None:
    wanted = Wanted(GPU, ("a", "b"), (Limits(4096, 25), Limits(8192, 50)), merges=False)
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


def test_settings_without_mps_are_known_as_such() -> None:
    assert not shares_by_mps(settings(ReplicaRule(TIME_SLICING, GPU, 4)))
    assert shares_by_mps(settings(ReplicaRule(MPS, GPU, 4)))


UUIDS = st.frozensets(st.sampled_from("abcdef"))


@given(UUIDS, UUIDS, UUIDS)
def test_a_daemon_stays_unless_it_lacks_a_gpu_or_holds_one_that_is_there_for_others(
    running: frozenset[str], wanted: frozenset[str], present: frozenset[str]
) -> None:
    lacks = any(gpu not in running for gpu in wanted)
    holds = any(gpu in present and gpu not in wanted for gpu in running)
    assert still_serves(tuple(running), tuple(wanted), present) is not (lacks or holds)
