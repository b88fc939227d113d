"""Which MPS daemons a node has, and which of them may stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.mps.plan import Wanted, plan_daemons, shares_by_mps, still_serves
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
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


def test_a_resource_has_one_daemon_with_its_gpus() -> None:
    plan = plan_daemons(settings(ReplicaRule(MPS, GPU, 4)), node("T4", "T4"))
    assert plan.daemons == (Wanted(GPU, ("GPU-0", "GPU-1")),)
    assert plan.present == {"GPU-0", "GPU-1"}


def test_new_names_and_names_by_model_count() -> None:
    wanted = settings(
        ReplicaRule(MPS, GPU, 2, rename="nvidia.com/mine"),
        ReplicaRule(MPS, "nvidia.com/big", 8),
        gpus=(NameRule("A100*", "nvidia.com/big"),),
    )
    assert plan_daemons(wanted, node("T4", "A100-80", "T4")).daemons == (
        Wanted("nvidia.com/big", ("GPU-1",)),
        Wanted("nvidia.com/mine", ("GPU-0", "GPU-2")),
    )


def test_gpus_that_are_whole_or_time_sliced_have_none() -> None:
    wanted = settings(
        ReplicaRule(MPS, GPU, 4, devices=Selection(references=("1",))),
        ReplicaRule(
            TIME_SLICING, GPU, 4, rename="nvidia.com/t", devices=Selection(references=("2",))
        ),
    )
    assert plan_daemons(wanted, node("T4", "T4", "T4")).daemons == (Wanted(GPU, ("GPU-1",)),)


def test_what_the_agent_does_not_offer_has_none_and_a_note() -> None:
    wanted = settings(ReplicaRule(MPS, GPU, 4), gpus=(NameRule("M60", "nvidia.com/old"),))
    plan = plan_daemons(wanted, node("M60", "T4"))
    assert plan.daemons == (Wanted(GPU, ("GPU-1",)),)
    mixed = Inventory("570.1", (*node("P4", capability=(6, 1)).gpus, node("T4", "T4").gpus[1]))
    plan = plan_daemons(settings(ReplicaRule(MPS, GPU, 4)), mixed)
    assert plan.daemons == (Wanted(GPU, ("GPU-1",)),)
    assert any("MPS has limits from 7.0 on" in note for note in plan.notes)


def test_what_the_agent_refuses_is_refused() -> None:
    with pytest.raises(SlicingError, match="maximum allowed replicas exceeded"):
        plan_daemons(settings(ReplicaRule(MPS, GPU, 49)), node("T4"))


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
