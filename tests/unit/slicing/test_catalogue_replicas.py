"""GPUs and rules -> pools: replicas by time-slicing and MPS, and nested pools."""

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.wire import DeviceGroup, device_list
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.rules import (
    MemoryRule,
    MigStrategy,
    NameRule,
    ReplicaRule,
    Rules,
    SharingStrategy,
)

from .nodes import (
    SMALL,
    codes,
    contents,
    gpu,
    messages,
    mig_gpu,
    mps,
    only,
    sliced,
)

T4 = "Tesla T4"
MIXED = MigStrategy.MIXED
SINGLE = MigStrategy.SINGLE
PART = ("1c.2g.10gb", 9856, 2)


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


def test_shares_by_mps_are_not_for_nested_nodes() -> None:
    rules = Rules(
        gpus=(NameRule("*T4", "nvidia.com/gpu", nested=True), NameRule("*", "nvidia.com/gpu")),
        replicas=(ReplicaRule(SharingStrategy.MPS, "nvidia.com/gpu", 2),),
    )
    with pytest.raises(SlicingError, match=r"nvidia.com/gpu .*whole GPU without limits") as refused:
        catalogue([gpu(0, T4)], rules)
    assert refused.value.code is Code.NESTED_NOT_LIMITED


def test_a_resource_is_nested_or_not() -> None:
    rules = Rules(replicas=(sliced(2, "0", nested=True), sliced(2, "1", nested=False)))
    with pytest.raises(SlicingError, match=r"one rule sets nested for nvidia.com/gpu"):
        catalogue([gpu(0), gpu(1)], rules)
