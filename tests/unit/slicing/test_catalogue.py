"""GPUs and rules -> pools: names, memory, and the node as a whole."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.slicing.catalogue import Catalogue, catalogue
from gpuslice.slicing.device import Device, whole
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.slicing.rules import (
    MemoryRule,
    MigStrategy,
    NameRule,
    Rules,
    Selection,
    SharingStrategy,
)

from .nodes import (
    A100,
    SMALL,
    codes,
    contents,
    gpu,
    messages,
    mig_gpu,
    mps,
    only,
    sliced,
    sliced_gpus,
)

T4 = "Tesla T4"
MIXED = MigStrategy.MIXED
SINGLE = MigStrategy.SINGLE
PART = ("1c.2g.10gb", 9856, 2)


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


def test_a_pattern_of_many_stars_is_matched_in_linear_time() -> None:
    rules = Rules(gpus=(NameRule("a*" * 40 + "b", "nvidia.com/b"),))
    [pool] = catalogue([gpu(0, "a" * 200)], rules).pools
    assert pool.resource == "nvidia.com/gpu"


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
