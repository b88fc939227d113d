import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.kubelet.wire import DeviceGroup, device_list
from gpuslice.slicing.catalogue import Catalogue, catalogue
from gpuslice.slicing.device import Device, whole
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.resource_names import profile_name
from gpuslice.slicing.rules import (
    MemoryRule,
    MigStrategy,
    NameRule,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)

from .nodes import A100, MEDIUM, SMALL, codes, contents, gpu, messages, mig_gpu, sliced_gpus

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


def only(found: Catalogue) -> Pool:
    (pool,) = found.pools
    return pool


# Whole GPUs and their names


def test_gpus_are_offered_whole_under_nvidias_name() -> None:
    found = catalogue([gpu(1), gpu(0)], Rules())
    assert contents(found) == {"nvidia.com/gpu": ["0", "1"]}
    assert only(found).sharing is SharingStrategy.NONE
    assert list(only(found).owners) == ["GPU-0", "GPU-1"]
    assert found.notices == ()


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
    assert only(found).resource == ("nvidia.com/t4" if matches else "nvidia.com/gpu")


def test_a_gpu_that_no_rule_names_keeps_the_usual_name() -> None:
    found = catalogue([gpu(0), gpu(1, T4)], Rules(gpus=(NameRule("*T4", "nvidia.com/t4"),)))
    assert contents(found) == {"nvidia.com/gpu": ["0"], "nvidia.com/t4": ["1"]}


@pytest.mark.parametrize(
    ("pattern", "note"),
    [
        ("Tesla-T4", "no GPU to name on this node matches 'Tesla-T4': did you mean 'Tesla T4'?"),
        ("*tesla t4", "no GPU to name on this node matches '*tesla t4': did you mean 'Tesla T4'?"),
        (
            "*H100*",
            f"no GPU to name on this node matches '*H100*': there is {A100}, {T4}",
        ),
    ],
)
def test_a_pattern_for_gpus_that_matches_nothing_is_a_note(pattern: str, note: str) -> None:
    rules = Rules(gpus=(NameRule(pattern, "nvidia.com/x"), NameRule("*", "nvidia.com/gpu")))
    found = catalogue([gpu(0), gpu(1, T4)], rules)
    assert messages(found) == [f"resources.gpus: {note}"]
    assert codes(found) == [Code.RULE_WITHOUT_EFFECT]
    assert contents(found) == {"nvidia.com/gpu": ["0", "1"]}


def test_a_pattern_for_gpus_whose_memory_is_cut_names_nothing_and_that_is_a_note() -> None:
    rules = Rules(gpus=(NameRule("*T4", "nvidia.com/t4"),), memory=MemoryRule())
    assert messages(catalogue([gpu(0, T4)], rules)) == [
        "resources.gpus: no GPU to name on this node matches '*T4': there is none",
    ]


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
    wsl = Device("all", "all", "all", nodes=("/dev/dxg",))
    assert list(only(catalogue([], Rules(), [wsl])).owners) == ["all"]
    found = catalogue([], Rules(replicas=(sliced(2, rename="nvidia.com/gpu.shared"),)), [wsl])
    assert list(only(found).owners) == ["all::0", "all::1"]


def test_a_node_without_gpus_offers_nothing() -> None:
    assert catalogue([], Rules(memory=MemoryRule())) == Catalogue(())


# MIG


def test_without_a_strategy_gpus_in_mig_mode_are_offered_whole() -> None:
    found = catalogue([gpu(0), mig_gpu(1, SMALL), mig_gpu(2)], Rules())
    assert contents(found) == {"nvidia.com/gpu": ["0", "1", "2"]}
    assert found.notices == ()


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
    device = only(catalogue([mig_gpu(3, SMALL)], Rules(MIXED))).parts[0].device
    assert device.nodes == ("/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap0")
    assert device.gpu == "GPU-3"


def test_mixed_notes_a_gpu_without_mig_devices_and_goes_on() -> None:
    found = catalogue([mig_gpu(0), mig_gpu(1, SMALL)], Rules(MIXED))
    assert contents(found) == {"nvidia.com/mig-1g.5gb": ["1:0"]}
    assert codes(found) == [Code.GPU_SKIPPED]
    assert "GPU 0 (GPU-0)" in messages(found)[0]


def test_a_part_of_a_gpu_instance_is_noted_and_the_rest_is_offered() -> None:
    found = catalogue([mig_gpu(0, PART, SMALL)], Rules(MIXED))
    assert contents(found) == {"nvidia.com/mig-1g.5gb": ["0:1"]}
    assert codes(found) == [Code.MIG_DEVICE_SKIPPED]
    assert "0:0 (MIG-0-0)" in messages(found)[0]
    assert "1c.2g.10gb" in messages(found)[0]


def test_a_part_of_a_gpu_instance_is_offered_where_a_rule_names_it() -> None:
    rules = Rules(MIXED, mig=(NameRule("1c.*", "nvidia.com/half"),))
    found = catalogue([mig_gpu(0, PART, SMALL)], rules)
    assert contents(found) == {"nvidia.com/half": ["0:0"], "nvidia.com/mig-1g.5gb": ["0:1"]}
    assert found.notices == ()


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
            r"on GPU 1 \(GPU-1\) and disabled on GPU 0 \(GPU-0\), GPU 2 \(GPU-2\).*mixed",
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
    with pytest.raises(SlicingError, match=because) as error:
        catalogue(gpus, Rules(SINGLE))
    assert error.value.code is Code.MIG_NOT_UNIFORM


def test_names_for_mig_devices_have_no_effect_without_a_strategy_and_that_is_a_note() -> None:
    rules = Rules(mig=(NameRule("1g.5gb", "nvidia.com/small"),))
    for gpus in ([mig_gpu(0, SMALL)], [gpu(0)]):
        found = catalogue(gpus, rules)
        assert contents(found) == {"nvidia.com/gpu": ["0"]}
        assert codes(found) == [Code.RULE_WITHOUT_EFFECT]
        assert messages(found)[0].startswith("resources.mig has no effect: migStrategy is none")


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
    assert messages(found) == [
        f"resources.mig: no MIG device on this node matches {pattern!r}: {there}"
    ]


def test_single_looks_only_at_gpus_that_are_not_cut_by_memory() -> None:
    rules = Rules(SINGLE, memory=MemoryRule())
    found = catalogue([gpu(0), mig_gpu(1, SMALL)], rules)
    assert contents(found) == {"nvidia.com/gpu": ["1:0"]}
    assert sliced_gpus(found) == [0]


# Memory


def test_gpus_cut_by_memory_are_offered_in_no_other_way() -> None:
    found = catalogue(
        [gpu(0), gpu(1), gpu(2)], Rules(memory=MemoryRule(Selection(references=("2", "GPU-0"))))
    )
    assert sliced_gpus(found) == [0, 2]
    assert contents(found) == {"nvidia.com/gpu": ["1"]}


def test_a_number_of_gpus_for_memory_means_the_first_ones_that_can_be_cut() -> None:
    found = catalogue(
        [mig_gpu(0, SMALL), gpu(1), gpu(2)], Rules(memory=MemoryRule(Selection(count=1)))
    )
    assert sliced_gpus(found) == [1]
    found = catalogue([gpu(0)], Rules(memory=MemoryRule(Selection(count=2))))
    assert codes(found) == [Code.DEVICE_NOT_FOUND]
    assert messages(found) == ["sharing.memory devices: 2 GPUs are configured and the node has 1"]


def test_gpus_in_mig_mode_are_passed_over_when_all_memory_is_cut() -> None:
    found = catalogue([gpu(0), mig_gpu(1, SMALL)], Rules(MIXED, memory=MemoryRule()))
    assert sliced_gpus(found) == [0]
    assert contents(found) == {"nvidia.com/mig-1g.5gb": ["1:0"]}
    assert found.notices == ()


@pytest.mark.parametrize("reference", ["1", "GPU-1", "1:0", "MIG-1-0", "MIG-GPU-1/7/0"])
def test_a_gpu_in_mig_mode_that_is_named_for_memory_is_refused(reference: str) -> None:
    with pytest.raises(
        SlicingError, match=rf"{reference} cannot be sliced .* GPU 1 .* MIG mode"
    ) as error:
        catalogue(
            [gpu(0), mig_gpu(1, SMALL)],
            Rules(memory=MemoryRule(Selection(references=(reference,)))),
        )
    assert error.value.code is Code.MIG_NOT_SLICEABLE


def test_a_gpu_for_memory_that_is_not_on_this_node_is_a_note() -> None:
    found = catalogue([gpu(0)], Rules(memory=MemoryRule(Selection(references=("GPU-9", "7")))))
    assert sliced_gpus(found) == []
    assert contents(found) == {"nvidia.com/gpu": ["0"]}
    assert messages(found) == [
        "sharing.memory devices: GPU-9 is not on this node, which has 0 (GPU-0)",
        "sharing.memory devices: 7 is not on this node, which has 0 (GPU-0)",
    ]


def test_a_gpu_cannot_be_both_cut_by_memory_and_replicated() -> None:
    rules = Rules(memory=MemoryRule(Selection(references=("0",))), replicas=(sliced(2, "GPU-0"),))
    with pytest.raises(SlicingError, match=r"GPU 0 \(GPU-0\) .* one way only"):
        catalogue([gpu(0), gpu(1)], rules)


def test_memory_replicas_and_whole_gpus_live_side_by_side() -> None:
    rules = Rules(
        MIXED,
        memory=MemoryRule(Selection(references=("0",))),
        replicas=(
            sliced(4, "1", rename="nvidia.com/gpu.shared"),
            mps(2, "2", rename="example/mps"),
        ),
    )
    found = catalogue([*map(gpu, range(4)), mig_gpu(4, SMALL)], rules)
    assert sliced_gpus(found) == [0]
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
    assert only(found).sharing is SharingStrategy.TIME_SLICING
    assert not only(found).one_share_per_container


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
        (sliced(2, "1"), "gpu devices: 1 is in MIG mode: name its MIG devices, for example 1:0"),
        (sliced(2, "1:0"), "1:0 is advertised as nvidia.com/mig-1g.5gb, not as nvidia.com/gpu"),
        (sliced(2, "MIG-GPU-1/7/1"), "MIG-GPU-1/7/1 is not on this node, which has 0 (GPU-0)"),
        (sliced(2, "MIG-GPU-1/7/0"), "MIG-GPU-1/7/0 is advertised as nvidia.com/mig-1g.5gb, not"),
        (sliced(2, count=3), "gpu devices: 3 are configured and the node has 1"),
        (sliced(2, name="example/t4"), "sharing.timeSlicing example/t4 has no effect"),
    ],
)
def test_what_a_shared_configuration_names_and_this_node_has_not_is_a_note(
    rule: ReplicaRule, note: str
) -> None:
    found = catalogue([gpu(0), mig_gpu(1, SMALL)], Rules(MIXED, replicas=(rule,)))
    [message] = messages(found)
    assert note in message
    assert list(contents(found)) == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]


@pytest.mark.parametrize("reference", ["1:0", "MIG-1-0", "MIG-GPU-1/7/0"])
@pytest.mark.parametrize("memory", [None, MemoryRule()])
def test_a_mig_device_that_the_strategy_does_not_offer_is_a_note_that_says_so(
    reference: str, memory: MemoryRule | None
) -> None:
    rules = Rules(replicas=(sliced(2, reference),), memory=memory)
    assert (
        f"sharing.timeSlicing nvidia.com/gpu devices: {reference} is a MIG device, and "
        "migStrategy is none. Set migStrategy to single or mixed"
    ) in messages(catalogue([gpu(0), mig_gpu(1, SMALL)], rules))


def test_a_device_that_two_rules_select_is_refused() -> None:
    rules = Rules(replicas=(sliced(2), mps(4, "1", rename="example/mps")))
    with pytest.raises(SlicingError, match=r"two rules .* device 1 \(GPU-1\) .*2\) and .*4\)"):
        catalogue([gpu(0), gpu(1)], rules)


def test_one_resource_is_not_shared_in_two_ways() -> None:
    rules = Rules(replicas=(sliced(2, "0"), mps(4, "1")))
    with pytest.raises(SlicingError, match=r"nvidia.com/gpu contains .* \(rename\)"):
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
    with pytest.raises(SlicingError, match=r"nvidia.com/gpu has up to 100000 replicas") as error:
        catalogue(gpus, Rules(replicas=(sliced(100_000),)))
    most = int(str(error.value).rpartition("at most ")[2].partition(" ")[0])
    pool = only(catalogue(gpus, Rules(replicas=(sliced(most),))))
    groups = [DeviceGroup(part.ids, healthy=False, numa_node=part.numa_node) for part in pool.parts]
    assert sum(len(device_list(group)) for group in groups) == pool.list_bytes()
    assert pool.list_bytes() <= MESSAGE_LIMIT_BYTES
    with pytest.raises(SlicingError):
        catalogue(gpus, Rules(replicas=(sliced(most + 1),)))


# MPS


def test_mps_replicas_are_given_one_at_a_time_unless_said_otherwise() -> None:
    pool = only(catalogue([gpu(0)], Rules(replicas=(mps(10),))))
    assert pool.sharing is SharingStrategy.MPS
    assert pool.one_share_per_container


@pytest.mark.parametrize(
    ("old", "because"),
    [
        (gpu(1, compute_capability=(6, 1)), "and this GPU has 6.1"),
        (gpu(1, memory_mib=0), "its memory of 0 MiB"),
        (mig_gpu(1, SMALL), "MIG is enabled, and MPS cannot limit"),
        (mig_gpu(1), "Disable MIG on it, or advertise its MIG devices (migStrategy single"),
    ],
)
def test_what_mps_cannot_limit_is_left_out_with_a_note(old: Gpu, because: str) -> None:
    found = catalogue([gpu(0), old], Rules(replicas=(mps(2),)))
    assert contents(found) == {"nvidia.com/gpu": ["0 x 2"]}
    assert codes(found) == [Code.GPU_SKIPPED]
    assert messages(found)[0].startswith("skipping device 1 (GPU-1): ")
    assert because in messages(found)[0]


def test_a_gpu_in_mig_mode_is_whole_or_sliced_in_time_as_before() -> None:
    gpus = [gpu(0), mig_gpu(1, SMALL), mig_gpu(2, SMALL)]
    rules = Rules(replicas=(mps(4, "0", rename="example/mps"), sliced(3, "1", rename="example/x")))
    found = catalogue(gpus, rules)
    assert contents(found) == {
        "example/mps": ["0 x 4"],
        "example/x": ["1 x 3"],
        "nvidia.com/gpu": ["2"],
    }
    assert found.notices == ()


def test_a_node_whose_gpus_are_all_in_mig_mode_has_nothing_to_share_by_mps() -> None:
    gpus = [mig_gpu(0, SMALL), mig_gpu(1)]
    with pytest.raises(
        NothingToAdvertise, match=r"skipping device 0 \(GPU-0\).*skipping device 1 \(GPU-1\)"
    ):
        catalogue(gpus, Rules(replicas=(mps(2),)))


def test_a_reserve_that_leaves_nothing_of_a_gpu_costs_that_gpu_with_a_note() -> None:
    gpus = [gpu(0), gpu(1, memory_mib=1025)]
    found = catalogue(gpus, Rules(replicas=(mps(2, reserve_mib=1024),)))
    assert contents(found) == {"nvidia.com/gpu": ["0 x 2"]}
    [message] = messages(found)
    assert message == (
        "skipping device 1 (GPU-1): its memory of 1025 MiB, of which sharing.mps.reserve "
        "keeps 1024 MiB, cannot be divided into 2 shares. Use a smaller reserve"
    )


def test_mig_devices_are_not_shared_by_mps() -> None:
    with pytest.raises(NothingToAdvertise, match="MPS sharing of MIG devices is not supported"):
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
    assert {pool.resource: pool.nested for pool in found.pools} == {
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
    with pytest.raises(SlicingError, match=r"one rule sets nested for nvidia.com/gpu"):
        catalogue([gpu(0), gpu(1)], rules)


# Nothing


def test_a_node_whose_gpus_all_drop_out_is_an_error_that_says_why() -> None:
    with pytest.raises(NothingToAdvertise, match=r"GPU 0 .* has no MIG devices"):
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
        memory=MemoryRule(Selection(references=tuple(first))) if first else None,
        replicas=tuple(
            sliced(2, *chosen, rename=rename)
            for chosen, rename in ((second, None), (third, "nvidia.com/shared"))
            if chosen
        ),
    )
    found = catalogue(gpus, rules)
    advertised = [part.device.uuid for pool in found.pools for part in pool.parts]
    assert sorted(advertised) == [g.uuid for g in gpus]
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
        minor=0,
    )
