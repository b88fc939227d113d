"""GPUs and rules -> pools: MIG strategies."""

import pytest

from gpuslice.codes import Code
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import NothingToAdvertise
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.resource_names import profile_name
from gpuslice.slicing.rules import (
    MemoryRule,
    MigStrategy,
    NameRule,
    Rules,
)

from .nodes import (
    MEDIUM,
    SMALL,
    codes,
    contents,
    gpu,
    messages,
    mig_gpu,
    only,
    sliced_gpus,
)

T4 = "Tesla T4"
MIXED = MigStrategy.MIXED
SINGLE = MigStrategy.SINGLE
PART = ("1c.2g.10gb", 9856, 2)


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
    ("gpus", "advertised", "skipped"),
    [
        # MIG is enabled on one GPU of several.
        ([gpu(0), mig_gpu(1, SMALL), gpu(2)], ["0", "2"], ["GPU-1"]),
        ([mig_gpu(0, SMALL), gpu(1), mig_gpu(2, SMALL)], ["0:0", "2:0"], ["GPU-1"]),
        # Of equal groups, the one with the lowest index.
        ([gpu(0), mig_gpu(1, SMALL)], ["0"], ["GPU-1"]),
        ([mig_gpu(0, SMALL), gpu(1)], ["0:0"], ["GPU-1"]),
        ([mig_gpu(0, SMALL, SMALL), mig_gpu(1, MEDIUM)], ["0:0", "0:1"], ["GPU-1"]),
        # The same profile of GPUs of another size.
        ([mig_gpu(0, SMALL), mig_gpu(1, ("1g.5gb", 5000, 1))], ["0:0"], ["GPU-1"]),
        # Different devices on one GPU are never identical.
        ([mig_gpu(0, SMALL, MEDIUM), mig_gpu(1, SMALL, MEDIUM), gpu(2)], ["2"], ["GPU-0", "GPU-1"]),
    ],
)
def test_single_skips_gpus_that_differ_and_leaves_the_others(
    gpus: list[Gpu], advertised: list[str], skipped: list[str]
) -> None:
    found = catalogue(gpus, Rules(SINGLE))
    assert contents(found) == {"nvidia.com/gpu": advertised}
    assert codes(found) == [Code.MIG_NOT_UNIFORM] * len(skipped)
    for message, uuid in zip(messages(found), skipped, strict=True):
        assert f"({uuid})" in message
        assert message.endswith("Make them equal, or use migStrategy mixed")


def test_single_names_what_differs() -> None:
    [message] = messages(catalogue([gpu(0), mig_gpu(1, SMALL, SMALL)], Rules(SINGLE)))
    assert "It has MIG devices 2 x 1g.5gb, and GPU 0 (GPU-0) has MIG disabled" in message


def test_single_skips_a_gpu_without_mig_devices() -> None:
    found = catalogue([mig_gpu(0, SMALL), mig_gpu(1)], Rules(SINGLE))
    assert contents(found) == {"nvidia.com/gpu": ["0:0"]}
    assert codes(found) == [Code.GPU_SKIPPED]
    assert "nvidia-smi mig" in messages(found)[0]


def test_single_without_any_usable_gpu_advertises_nothing() -> None:
    with pytest.raises(NothingToAdvertise, match=r"GPU 0 .* GPU 1 "):
        catalogue([mig_gpu(0, SMALL, MEDIUM), mig_gpu(1)], Rules(SINGLE))


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
