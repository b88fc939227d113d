import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kubelet.wire import UNHEALTHY, device_list
from gpuslice.slicing.catalogue import Catalogue, DeviceOffer, catalogue
from gpuslice.slicing.device import Device, whole
from gpuslice.slicing.errors import NothingToOffer, SlicingError, TooManyDevices
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.naming import profile_name
from gpuslice.slicing.rules import (
    ALL,
    MigStrategy,
    NameRule,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)

from .nodes import MEDIUM, SMALL, contents, gpu, mig_gpu

T4 = "Tesla T4"
MIXED = MigStrategy.MIXED
SINGLE = MigStrategy.SINGLE
PART = ("1c.2g.10gb", 9856, 2)


def sliced(
    replicas: int,
    *references: str,
    count: int | None = None,
    name: str = "nvidia.com/gpu",
    rename: str | None = None,
    nested: bool | None = None,
) -> ReplicaRule:
    devices = Selection(count, references)
    return ReplicaRule(SharingStrategy.TIME_SLICING, name, replicas, rename, devices, nested=nested)


def mps(
    replicas: int, *references: str, rename: str | None = None, reserve_mib: int = 0
) -> ReplicaRule:
    return ReplicaRule(
        SharingStrategy.MPS,
        "nvidia.com/gpu",
        replicas,
        rename,
        Selection(references=references),
        fail_requests_greater_than_one=True,
        reserve_mib=reserve_mib,
    )


def only(found: Catalogue) -> DeviceOffer:
    (offer,) = found.resources
    return offer


# Whole GPUs and their names


def test_gpus_are_offered_whole_under_nvidias_name() -> None:
    found = catalogue([gpu(1), gpu(0)], Rules())
    assert contents(found) == {"nvidia.com/gpu": ["0", "1"]}
    assert only(found).strategy is SharingStrategy.NONE
    assert list(only(found).owners) == ["GPU-0", "GPU-1"]
    assert found.notes == ()


def test_the_first_pattern_that_matches_names_a_gpu() -> None:
    rules = Rules(
        gpus=(
            NameRule("Tesla*", "nvidia.com/tesla"),
            NameRule("*T4", "nvidia.com/t4"),
            NameRule("*", "nvidia.com/gpu"),
        )
    )
    found = catalogue([gpu(0), gpu(1, T4), gpu(2, "NVIDIA T4")], rules)
    assert contents(found) == {
        "nvidia.com/gpu": ["0"],
        "nvidia.com/t4": ["2"],
        "nvidia.com/tesla": ["1"],
    }


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("Tesla T4", True),
        ("Tesla", False),
        ("*", True),
        ("T*4", True),
        ("*esla T4*", True),
        ("tesla t4", False),
        ("Tesla.T4", False),
        ("Tesla T[4]", False),
        ("", False),
    ],
)
def test_a_pattern_is_matched_from_end_to_end_and_only_the_star_is_special(
    pattern: str, *, matches: bool
) -> None:
    found = catalogue([gpu(0, T4)], Rules(gpus=(NameRule(pattern, "nvidia.com/t4"),)))
    assert only(found).name == ("nvidia.com/t4" if matches else "nvidia.com/gpu")


def test_a_gpu_that_no_rule_names_keeps_the_usual_name() -> None:
    found = catalogue([gpu(0), gpu(1, T4)], Rules(gpus=(NameRule("*T4", "nvidia.com/t4"),)))
    assert contents(found) == {"nvidia.com/gpu": ["0"], "nvidia.com/t4": ["1"]}


@pytest.mark.parametrize(
    ("pattern", "note"),
    [
        ("Tesla-T4", "no GPU to be named here matches 'Tesla-T4': did you mean 'Tesla T4'?"),
        ("*tesla t4", "no GPU to be named here matches '*tesla t4': did you mean 'Tesla T4'?"),
        (
            "*H100*",
            "no GPU to be named here matches '*H100*': there is NVIDIA A100-SXM4-40GB, Tesla T4",
        ),
    ],
)
def test_a_pattern_for_gpus_that_matches_nothing_is_a_note(pattern: str, note: str) -> None:
    rules = Rules(gpus=(NameRule(pattern, "nvidia.com/x"), NameRule("*", "nvidia.com/gpu")))
    found = catalogue([gpu(0), gpu(1, T4)], rules)
    assert found.notes == (f"resources.gpus: {note}",)
    assert contents(found) == {"nvidia.com/gpu": ["0", "1"]}


def test_a_pattern_for_gpus_whose_memory_is_cut_names_nothing_and_that_is_a_note() -> None:
    rules = Rules(gpus=(NameRule("*T4", "nvidia.com/t4"),), memory=ALL)
    assert catalogue([gpu(0, T4)], rules).notes == (
        "resources.gpus: no GPU to be named here matches '*T4': there is none",
    )


@pytest.mark.parametrize("strategy", MigStrategy)
def test_any_pattern_is_right_on_a_node_without_gpus(strategy: MigStrategy) -> None:
    rules = Rules(
        strategy,
        gpus=(NameRule("*T4", "nvidia.com/t4"),),
        mig=(NameRule("1g.*", "nvidia.com/small"),),
    )
    assert catalogue([], rules) == Catalogue(())


def test_devices_are_counted_as_people_count_them() -> None:
    found = catalogue([gpu(index) for index in (10, 2, 0)], Rules())
    assert contents(found) == {"nvidia.com/gpu": ["0", "2", "10"]}


def test_what_stands_in_for_a_gpu_is_offered_and_shared_as_one() -> None:
    wsl = Device("all", "all", "all", ("/dev/dxg",))
    assert list(only(catalogue([], Rules(), [wsl])).owners) == ["all"]
    found = catalogue([], Rules(replicas=(sliced(2, rename="nvidia.com/gpu.shared"),)), [wsl])
    assert list(only(found).owners) == ["all::0", "all::1"]


def test_a_node_without_gpus_offers_nothing() -> None:
    assert catalogue([], Rules(memory=ALL)) == Catalogue(())


# MIG


def test_without_a_strategy_gpus_in_mig_mode_are_offered_whole() -> None:
    found = catalogue([gpu(0), mig_gpu(1, SMALL), mig_gpu(2)], Rules())
    assert contents(found) == {"nvidia.com/gpu": ["0", "1", "2"]}
    assert found.notes == ()


def test_mixed_offers_each_profile_under_its_own_name() -> None:
    gpus = [gpu(0), mig_gpu(1, SMALL, MEDIUM, SMALL), mig_gpu(2, SMALL)]
    assert contents(catalogue(gpus, Rules(MIXED))) == {
        "nvidia.com/gpu": ["0"],
        "nvidia.com/mig-1g.5gb": ["1:0", "1:2", "2:0"],
        "nvidia.com/mig-2g.10gb": ["1:1"],
    }


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
    ],
)
def test_attributes_of_a_profile_are_part_of_its_name(profile: str, name: str) -> None:
    assert profile_name(profile) == name
    assert contents(catalogue([mig_gpu(0, (profile, 10, 1))], Rules(MIXED))) == {name: ["0:0"]}


def test_a_mig_device_has_the_nodes_of_its_gpu_and_its_own() -> None:
    offered = only(catalogue([mig_gpu(3, SMALL)], Rules(MIXED))).devices[0].device
    assert offered.nodes == ("/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap0")
    assert offered.gpu == "GPU-3"


def test_mixed_notes_a_gpu_without_mig_devices_and_goes_on() -> None:
    found = catalogue([mig_gpu(0), mig_gpu(1, SMALL)], Rules(MIXED))
    assert contents(found) == {"nvidia.com/mig-1g.5gb": ["1:0"]}
    (note,) = found.notes
    assert "GPU 0 (GPU-0) is not offered" in note


def test_a_part_of_a_gpu_instance_is_noted_and_the_rest_is_offered() -> None:
    found = catalogue([mig_gpu(0, PART, SMALL)], Rules(MIXED))
    assert contents(found) == {"nvidia.com/mig-1g.5gb": ["0:1"]}
    (note,) = found.notes
    assert "0:0 (MIG-0-0) is not offered" in note
    assert "1c.2g.10gb" in note


def test_a_part_of_a_gpu_instance_is_offered_where_a_rule_names_it() -> None:
    rules = Rules(MIXED, mig=(NameRule("1c.*", "nvidia.com/half"),))
    found = catalogue([mig_gpu(0, PART, SMALL)], rules)
    assert contents(found) == {"nvidia.com/half": ["0:0"], "nvidia.com/mig-1g.5gb": ["0:1"]}
    assert found.notes == ()


def test_rules_for_mig_devices_match_their_profile() -> None:
    rules = Rules(MIXED, mig=(NameRule("1g.*", "nvidia.com/small"),))
    assert contents(catalogue([mig_gpu(0, SMALL, MEDIUM)], rules)) == {
        "nvidia.com/mig-2g.10gb": ["0:1"],
        "nvidia.com/small": ["0:0"],
    }


def test_single_offers_mig_devices_as_gpus() -> None:
    found = catalogue([mig_gpu(0, SMALL, SMALL), mig_gpu(1, SMALL)], Rules(SINGLE))
    assert contents(found) == {"nvidia.com/gpu": ["0:0", "0:1", "1:0"]}


def test_single_offers_gpus_where_none_is_in_mig_mode() -> None:
    assert contents(catalogue([gpu(0), gpu(1)], Rules(SINGLE))) == {"nvidia.com/gpu": ["0", "1"]}


def test_under_single_a_name_for_gpus_names_mig_devices_too() -> None:
    rules = Rules(SINGLE, gpus=(NameRule("*A100*", "nvidia.com/a100"),))
    assert contents(catalogue([mig_gpu(0, SMALL)], rules)) == {"nvidia.com/a100": ["0:0"]}
    rules = Rules(SINGLE, rules.gpus, mig=(NameRule("1g.5gb", "nvidia.com/small"),))
    assert contents(catalogue([mig_gpu(0, SMALL)], rules)) == {"nvidia.com/small": ["0:0"]}


@pytest.mark.parametrize(
    ("gpus", "because"),
    [
        (
            [gpu(0), mig_gpu(1, SMALL), gpu(2)],
            r"GPU 1 \(GPU-1\) are, GPU 0 \(GPU-0\), GPU 2 \(GPU-2\) are not.*migStrategy mixed",
        ),
        ([mig_gpu(0, SMALL), mig_gpu(1)], r"GPU 1 \(GPU-1\) have none.*nvidia-smi mig"),
        (
            [mig_gpu(0, SMALL, SMALL), mig_gpu(1, MEDIUM)],
            "these differ: 1g.5gb: 0:0, 0:1; 2g.10gb: 1:0.*migStrategy mixed",
        ),
        (
            [mig_gpu(0, SMALL), mig_gpu(1, ("1g.5gb", 5000, 1))],
            "these differ: 1g.5gb: 0:0; 1g.5gb: 1:0",
        ),
    ],
)
def test_single_refuses_gpus_that_differ_and_names_them(gpus: list[Gpu], because: str) -> None:
    with pytest.raises(SlicingError, match=because):
        catalogue(gpus, Rules(SINGLE))


def test_names_for_mig_devices_have_no_effect_without_a_strategy_and_that_is_a_note() -> None:
    rules = Rules(mig=(NameRule("1g.5gb", "nvidia.com/small"),))
    for gpus in ([mig_gpu(0, SMALL)], [gpu(0)]):
        found = catalogue(gpus, rules)
        assert contents(found) == {"nvidia.com/gpu": ["0"]}
        [note] = found.notes
        assert note == (
            "resources.mig has no effect: MIG devices are offered by the MIG strategy single or "
            "mixed (mig-strategy), and it is none"
        )


@pytest.mark.parametrize(
    ("node", "pattern", "there"),
    [
        (mig_gpu(0, SMALL, MEDIUM), "3g.20gb", "there is 1g.5gb, 2g.10gb"),
        (mig_gpu(0, SMALL), "1G.5GB", "did you mean '1g.5gb'?"),
        (gpu(0), "1g.*", "there is none"),
    ],
)
def test_a_pattern_for_mig_devices_that_matches_nothing_is_a_note(
    node: Gpu, pattern: str, there: str
) -> None:
    found = catalogue([node], Rules(MIXED, mig=(NameRule(pattern, "nvidia.com/x"),)))
    assert found.notes == (f"resources.mig: no MIG device here matches {pattern!r}: {there}",)


def test_single_looks_only_at_gpus_that_are_not_cut_by_memory() -> None:
    rules = Rules(SINGLE, memory=ALL)
    found = catalogue([gpu(0), mig_gpu(1, SMALL)], rules)
    assert contents(found) == {"nvidia.com/gpu": ["1:0"]}
    assert [g.uuid for g in found.memory] == ["GPU-0"]


# Memory


def test_gpus_cut_by_memory_are_offered_in_no_other_way() -> None:
    found = catalogue([gpu(0), gpu(1), gpu(2)], Rules(memory=Selection(references=("2", "GPU-0"))))
    assert [g.index for g in found.memory] == [0, 2]
    assert contents(found) == {"nvidia.com/gpu": ["1"]}


def test_a_number_of_gpus_for_memory_means_the_first_ones_that_can_be_cut() -> None:
    found = catalogue([mig_gpu(0, SMALL), gpu(1), gpu(2)], Rules(memory=Selection(count=1)))
    assert [g.index for g in found.memory] == [1]
    found = catalogue([gpu(0)], Rules(memory=Selection(count=2)))
    assert found.notes == ("sharing.memory devices: 2 GPUs are wanted and there are 1",)


def test_gpus_in_mig_mode_are_passed_over_when_all_memory_is_cut() -> None:
    found = catalogue([gpu(0), mig_gpu(1, SMALL)], Rules(MIXED, memory=ALL))
    assert [g.index for g in found.memory] == [0]
    assert contents(found) == {"nvidia.com/mig-1g.5gb": ["1:0"]}
    assert found.notes == ()


@pytest.mark.parametrize("reference", ["1", "GPU-1", "1:0", "MIG-1-0", "MIG-GPU-1/7/0"])
def test_a_gpu_in_mig_mode_that_is_named_for_memory_is_refused(reference: str) -> None:
    with pytest.raises(SlicingError, match=rf"{reference} cannot be cut .* GPU 1 .* MIG mode"):
        catalogue([gpu(0), mig_gpu(1, SMALL)], Rules(memory=Selection(references=(reference,))))


def test_a_gpu_for_memory_that_is_not_on_this_node_is_a_note() -> None:
    found = catalogue([gpu(0)], Rules(memory=Selection(references=("GPU-9", "7"))))
    assert found.memory == ()
    assert contents(found) == {"nvidia.com/gpu": ["0"]}
    assert found.notes == (
        "sharing.memory devices: GPU-9 is not on this node, which has 0 (GPU-0)",
        "sharing.memory devices: 7 is not on this node, which has 0 (GPU-0)",
    )


def test_a_gpu_cannot_be_both_cut_by_memory_and_replicated() -> None:
    rules = Rules(memory=Selection(references=("0",)), replicas=(sliced(2, "GPU-0"),))
    with pytest.raises(SlicingError, match=r"GPU 0 \(GPU-0\) .* one way only"):
        catalogue([gpu(0), gpu(1)], rules)


def test_memory_replicas_and_whole_gpus_live_side_by_side() -> None:
    rules = Rules(
        MIXED,
        memory=Selection(references=("0",)),
        replicas=(
            sliced(4, "1", rename="nvidia.com/gpu.shared"),
            mps(2, "2", rename="example/mps"),
        ),
    )
    found = catalogue([*map(gpu, range(4)), mig_gpu(4, SMALL)], rules)
    assert [g.index for g in found.memory] == [0]
    assert contents(found) == {
        "example/mps": ["2 x 2"],
        "nvidia.com/gpu": ["3"],
        "nvidia.com/gpu.shared": ["1 x 4"],
        "nvidia.com/mig-1g.5gb": ["4:0"],
    }


# Replicas


def test_replicas_are_numbered_from_0() -> None:
    found = catalogue([gpu(0)], Rules(replicas=(sliced(3),)))
    assert list(only(found).owners) == ["GPU-0::0", "GPU-0::1", "GPU-0::2"]
    assert only(found).strategy is SharingStrategy.TIME_SLICING
    assert not only(found).fail_requests_greater_than_one


def test_replicas_can_have_a_name_of_their_own() -> None:
    found = catalogue([gpu(0), gpu(1)], Rules(replicas=(sliced(2, rename="nvidia.com/shared"),)))
    assert contents(found) == {"nvidia.com/shared": ["0 x 2", "1 x 2"]}


def test_devices_that_are_not_selected_stay_as_they_are() -> None:
    renamed = Rules(replicas=(sliced(2, "1", rename="nvidia.com/gpu.shared"),))
    assert contents(catalogue([gpu(0), gpu(1)], renamed)) == {
        "nvidia.com/gpu": ["0"],
        "nvidia.com/gpu.shared": ["1 x 2"],
    }
    same_name = Rules(replicas=(sliced(2, "1"),))
    assert contents(catalogue([gpu(0), gpu(1)], same_name)) == {"nvidia.com/gpu": ["0", "1 x 2"]}


def test_each_gpu_can_have_its_own_number_of_replicas() -> None:
    rules = Rules(replicas=(sliced(2, "0"), sliced(5, "GPU-2")))
    assert contents(catalogue([gpu(0), gpu(1), gpu(2)], rules)) == {
        "nvidia.com/gpu": ["0 x 2", "1", "2 x 5"]
    }


def test_a_number_of_devices_means_the_first_ones_of_the_resource() -> None:
    gpus = [gpu(0, T4), gpu(1), gpu(2), gpu(3)]
    rules = Rules(gpus=(NameRule("*T4", "nvidia.com/t4"),), replicas=(sliced(2, count=2),))
    assert contents(catalogue(gpus, rules)) == {
        "nvidia.com/gpu": ["1 x 2", "2 x 2", "3"],
        "nvidia.com/t4": ["0"],
    }


@pytest.mark.parametrize("reference", ["1:1", "MIG-1-1", "MIG-GPU-1/8/0"])
def test_mig_devices_are_selected_by_index_uuid_or_instances(reference: str) -> None:
    rules = Rules(MIXED, replicas=(sliced(2, reference, name="nvidia.com/mig-1g.5gb"),))
    assert contents(catalogue([mig_gpu(1, SMALL, SMALL)], rules)) == {
        "nvidia.com/mig-1g.5gb": ["1:0", "1:1 x 2"]
    }


def test_two_ways_to_name_a_device_are_one_device() -> None:
    rules = Rules(replicas=(sliced(2, "0", "GPU-0"),))
    assert contents(catalogue([gpu(0)], rules)) == {"nvidia.com/gpu": ["0 x 2"]}


@pytest.mark.parametrize(
    ("rule", "note"),
    [
        (sliced(2, "GPU-9"), "gpu devices: GPU-9 is not on this node, which has 0 (GPU-0)"),
        (sliced(2, "5"), "gpu devices: 5 is not on this node, which has 0 (GPU-0)"),
        (sliced(2, "1"), "gpu devices: 1 is in MIG mode: name its MIG devices, as in 1:0"),
        (sliced(2, "1:0"), "1:0 is offered as nvidia.com/mig-1g.5gb, not as nvidia.com/gpu"),
        (sliced(2, "MIG-GPU-1/7/1"), "MIG-GPU-1/7/1 is not on this node, which has 0 (GPU-0)"),
        (sliced(2, "MIG-GPU-1/7/0"), "MIG-GPU-1/7/0 is offered as nvidia.com/mig-1g.5gb, not"),
        (sliced(2, count=3), "gpu devices: 3 are wanted and there are 1"),
        (sliced(2, name="example/t4"), "sharing.timeSlicing example/t4 has no effect"),
    ],
)
def test_what_a_shared_configuration_names_and_this_node_has_not_is_a_note(
    rule: ReplicaRule, note: str
) -> None:
    found = catalogue([gpu(0), mig_gpu(1, SMALL)], Rules(MIXED, replicas=(rule,)))
    (told,) = found.notes
    assert note in told
    assert list(contents(found)) == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]


@pytest.mark.parametrize("reference", ["1:0", "MIG-1-0", "MIG-GPU-1/7/0"])
@pytest.mark.parametrize("memory", [None, ALL])
def test_a_mig_device_that_the_strategy_does_not_offer_is_a_note_that_says_so(
    reference: str, memory: Selection | None
) -> None:
    rules = Rules(replicas=(sliced(2, reference),), memory=memory)
    notes = catalogue([gpu(0), mig_gpu(1, SMALL)], rules).notes
    assert (
        f"sharing.timeSlicing nvidia.com/gpu devices: {reference} is a MIG device; these are "
        "offered by the MIG strategy single or mixed (mig-strategy), and it is none"
    ) in notes


def test_a_device_that_two_rules_select_is_refused() -> None:
    rules = Rules(replicas=(sliced(2), mps(4, "1", rename="example/mps")))
    with pytest.raises(SlicingError, match=r"device 1 \(GPU-1\) .* two rules.*2\) and .*4\)"):
        catalogue([gpu(0), gpu(1)], rules)


def test_one_resource_is_not_shared_in_two_ways() -> None:
    rules = Rules(replicas=(sliced(2, "0"), mps(4, "1")))
    with pytest.raises(SlicingError, match=r"nvidia.com/gpu would hold .* \(rename\)"):
        catalogue([gpu(0), gpu(1)], rules)
    rules = Rules(replicas=(sliced(2, "0", rename="example/x"), mps(4, "1")))
    assert contents(catalogue([gpu(0), gpu(1)], rules)) == {
        "example/x": ["0 x 2"],
        "nvidia.com/gpu": ["1 x 4"],
    }


def test_replicas_of_none_are_refused() -> None:
    with pytest.raises(SlicingError, match="replicas: 0: use 1 or more"):
        catalogue([gpu(0)], Rules(replicas=(sliced(0),)))


def test_lists_that_pass_the_kubelets_limit_are_refused_with_a_number_that_does_not() -> None:
    gpus = [gpu(index, numa_node=index % 2) for index in range(8)]
    with pytest.raises(TooManyDevices, match=r"nvidia.com/gpu has up to 100000 replicas") as error:
        catalogue(gpus, Rules(replicas=(sliced(100_000),)))
    most = int(str(error.value).rpartition("at most ")[2].partition(" ")[0])
    offer = only(catalogue(gpus, Rules(replicas=(sliced(most),))))
    size = sum(
        len(device_list(offered.ids(), UNHEALTHY, offered.device.numa_node))
        for offered in offer.devices
    )
    assert size <= MESSAGE_LIMIT_BYTES
    with pytest.raises(TooManyDevices):
        catalogue(gpus, Rules(replicas=(sliced(most + 1),)))


# MPS


def test_mps_replicas_are_given_one_at_a_time_unless_said_otherwise() -> None:
    offer = only(catalogue([gpu(0)], Rules(replicas=(mps(10),))))
    assert offer.strategy is SharingStrategy.MPS
    assert offer.fail_requests_greater_than_one


@pytest.mark.parametrize(
    ("old", "because"),
    [
        (gpu(1, compute_capability=(6, 1)), "its compute capability is 6.1"),
        (gpu(1, memory_mib=0), "its memory of 0 MiB"),
        (mig_gpu(1, SMALL), "it is in MIG mode, where MPS cannot limit"),
        (mig_gpu(1), "Switch its MIG mode off, or offer its MIG devices (migStrategy single"),
    ],
)
def test_what_mps_cannot_limit_is_left_out_with_a_note(old: Gpu, because: str) -> None:
    found = catalogue([gpu(0), old], Rules(replicas=(mps(2),)))
    assert contents(found) == {"nvidia.com/gpu": ["0 x 2"]}
    (note,) = found.notes
    assert note.startswith("device 1 (GPU-1) is not offered: ")
    assert because in note


def test_a_gpu_in_mig_mode_is_whole_or_sliced_in_time_as_before() -> None:
    gpus = [gpu(0), mig_gpu(1, SMALL), mig_gpu(2, SMALL)]
    rules = Rules(replicas=(mps(4, "0", rename="example/mps"), sliced(3, "1", rename="example/x")))
    found = catalogue(gpus, rules)
    assert contents(found) == {
        "example/mps": ["0 x 4"],
        "example/x": ["1 x 3"],
        "nvidia.com/gpu": ["2"],
    }
    assert found.notes == ()


def test_a_node_whose_gpus_are_all_in_mig_mode_has_nothing_to_share_by_mps() -> None:
    gpus = [mig_gpu(0, SMALL), mig_gpu(1)]
    with pytest.raises(NothingToOffer, match=r"0 \(GPU-0\) is not offered.*1 \(GPU-1\) is not"):
        catalogue(gpus, Rules(replicas=(mps(2),)))


def test_a_reserve_that_leaves_nothing_of_a_gpu_costs_that_gpu_with_a_note() -> None:
    gpus = [gpu(0), gpu(1, memory_mib=1025)]
    found = catalogue(gpus, Rules(replicas=(mps(2, reserve_mib=1024),)))
    assert contents(found) == {"nvidia.com/gpu": ["0 x 2"]}
    (note,) = found.notes
    assert note == (
        "device 1 (GPU-1) is not offered: its memory of 1025 MiB, of which sharing.mps.reserve "
        "keeps 1024 MiB, cannot be split into 2 shares. Use a smaller reserve"
    )


def test_mig_devices_are_not_shared_by_mps() -> None:
    with pytest.raises(NothingToOffer, match="MPS sharing of MIG devices is not supported"):
        catalogue([mig_gpu(0, SMALL)], Rules(SINGLE, replicas=(mps(2),)))


def test_volta_serves_as_many_clients_as_its_successors() -> None:
    volta = gpu(0, compute_capability=(7, 0))
    assert contents(catalogue([volta], Rules(replicas=(mps(48),)))) == {
        "nvidia.com/gpu": ["0 x 48"]
    }
    with pytest.raises(SlicingError, match=r"maximum allowed replicas exceeded.*at most 48"):
        catalogue([volta], Rules(replicas=(mps(49),)))


# Nested clusters


def test_rules_say_whether_a_resource_is_nested_and_else_the_node_does() -> None:
    rules = Rules(
        gpus=(NameRule("*T4", "nvidia.com/t4", nested=False),),
        replicas=(sliced(2, "2", rename="nvidia.com/shared"),),
        nested=True,
    )
    found = catalogue([gpu(0, T4), gpu(1), gpu(2)], rules)
    assert {offer.name: offer.nested for offer in found.resources} == {
        "nvidia.com/gpu": True,
        "nvidia.com/shared": True,
        "nvidia.com/t4": False,
    }


def test_a_rule_for_replicas_has_the_last_word_on_nesting() -> None:
    rules = Rules(
        gpus=(NameRule("*", "nvidia.com/gpu", nested=False),), replicas=(sliced(2, nested=True),)
    )
    assert only(catalogue([gpu(0)], rules)).nested


def test_a_resource_is_nested_or_not() -> None:
    rules = Rules(replicas=(sliced(2, "0", nested=True), sliced(2, "1", nested=False)))
    with pytest.raises(SlicingError, match=r"nvidia.com/gpu is nested by one rule"):
        catalogue([gpu(0), gpu(1)], rules)


# Nothing


def test_a_node_whose_gpus_all_drop_out_is_an_error_that_says_why() -> None:
    with pytest.raises(NothingToOffer, match=r"GPU 0 .* has no MIG devices"):
        catalogue([mig_gpu(0)], Rules(MIXED))


# In general


@given(st.data())
def test_every_device_is_offered_once_whatever_is_selected(data: st.DataObject) -> None:
    gpus = [
        gpu(n, data.draw(st.sampled_from([T4, "A"]))) for n in range(data.draw(st.integers(1, 8)))
    ]
    references = st.lists(st.sampled_from([str(n) for n in range(9)]), unique=True)
    first = data.draw(references)
    second = [r for r in data.draw(references) if r not in first]
    third = [r for r in data.draw(references) if r not in (*first, *second)]
    rules = Rules(
        gpus=(NameRule("*T4", "nvidia.com/t4"),),
        memory=Selection(references=tuple(first)) if first else None,
        replicas=tuple(
            sliced(2, *chosen, rename=rename)
            for chosen, rename in ((second, None), (third, "nvidia.com/shared"))
            if chosen
        ),
    )
    found = catalogue(gpus, rules)
    offered = [o.device.uuid for offer in found.resources for o in offer.devices]
    assert sorted([*offered, *(g.uuid for g in found.memory)]) == [g.uuid for g in gpus]
    shuffled = list(gpus)
    random.Random(0).shuffle(shuffled)
    assert catalogue(shuffled, rules) == found


def test_a_device_of_a_gpu_is_the_gpu() -> None:
    assert whole(gpu(0, numa_node=1)) == Device(
        "GPU-0",
        "0",
        "GPU-0",
        ("/dev/nvidia0",),
        40960,
        (8, 0),
        1,
        "NVIDIA A100-SXM4-40GB",
    )
