"""The inventory of simulated nodes, compared with the output of NVIDIA's tools."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code
from gpuslice.gpus.inventory import Inventory
from gpuslice_sim.node import SimNode
from tests.peers.facts import CARDS, INSTANCES

from .conftest import Evaluate, MakeNode

READ = "result = read_inventory(Nvml.open(), sysfs, proc)"


def read(evaluate: Evaluate, node: SimNode) -> Inventory:
    inventory: Inventory = evaluate(node, READ)
    return inventory


@pytest.mark.parametrize("profile", CARDS)
def test_every_gpu_has_its_own_properties(
    profile: str, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node(profile)
    inventory = read(evaluate, node)
    assert inventory.driver_version == "570.124.06"
    assert inventory.skipped == ()
    assert inventory.notices == ()
    for index, (gpu, card, real) in enumerate(
        zip(inventory.gpus, CARDS[profile], node.gpus(), strict=True)
    ):
        assert gpu.name.replace(" ", "-") == card.product
        assert (gpu.memory_mib, gpu.mig_capable) == (card.memory_mib, card.mig_capable)
        assert ".".join(map(str, gpu.compute_capability)) == card.capability
        assert (gpu.uuid, gpu.index, gpu.minor) == (real.uuid, index, real.minor)
        assert gpu.nodes == (f"/dev/nvidia{real.minor}",)
        assert gpu.pci_bus_id == real.pci[4:].lower()
        assert gpu.numa_node == real.numa
        assert gpu.multiprocessors == int(node.state.values()[f"gpu.{index}.sms"])
        instances = INSTANCES.get(profile, [[]] * len(inventory.gpus))[index]
        assert gpu.mig_enabled is bool(instances)
        assert [m.profile for m in gpu.mig] == [i.name for i in instances]


@pytest.mark.parametrize("profile", INSTANCES)
def test_mig_devices_have_their_instances_attributes_and_device_nodes(
    profile: str, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node(profile)
    inventory = read(evaluate, node)
    for gpu, real, instances in zip(inventory.gpus, node.gpus(), INSTANCES[profile], strict=True):
        for index, (mig, sim, fact) in enumerate(zip(gpu.mig, real.mig, instances, strict=True)):
            assert (mig.uuid, mig.index) == (sim.uuid, index)
            assert (mig.gpu_instance, mig.compute_instance) == (sim.gi, sim.ci)
            assert (mig.memory_mib, mig.multiprocessors) == (
                fact.memory_mib,
                fact.multiprocessors,
            )
            assert mig.slices == (fact.slices, fact.slices)
            assert mig.engines[:2] == (fact.copy_engines, fact.decoders)
            # The driver numbers nodes by GPU, 15 GPU instances and 8 compute instances of each.
            first = 3 + (real.minor * 15 + sim.gi) * 9
            assert mig.nodes == (
                f"/dev/nvidia-caps/nvidia-cap{first}",
                f"/dev/nvidia-caps/nvidia-cap{first + 1 + sim.ci}",
            )


@pytest.mark.parametrize(
    ("profile", "layout"),
    [
        ("a100-40x8", ["1g.5gb+me", "1g.5gb", "1g.10gb", "2g.10gb"]),
        ("a100-80x8", ["1g.10gb+me", "1g.10gb", "1g.20gb", "2g.20gb"]),
        ("a100-80x8", ["3g.40gb", "4g.40gb"]),
        ("h100x8", ["1g.10gb+me", "1g.20gb", "2g.20gb"]),
        ("h100x8", ["7g.80gb"]),
        ("b200x8", ["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb"]),
        ("b200x8", ["3g.90gb", "4g.90gb"]),
        ("b200x8", ["7g.180gb"]),
    ],
)
def test_mig_devices_have_the_names_of_their_profiles(
    profile: str, layout: list[str], make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node(profile)
    node.faults.mig(1, layout)
    first, second, *_ = read(evaluate, node).gpus
    assert [mig.profile for mig in second.mig] == layout
    assert (first.mig_enabled, second.mig_enabled) == (False, True)


def test_the_profile_is_read_without_privileges_too(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100-40x8")
    layout = ["1g.5gb+me", "1g.5gb"]
    node.faults.mig(0, layout)
    node.faults.call(0, "nvmlDeviceGetGpuInstanceById", "NO_PERMISSION")
    assert [mig.profile for mig in read(evaluate, node).gpus[0].mig] == layout


def test_a_smaller_compute_instance_is_part_of_the_profile(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.set({"gpu.0.mig.0.ci_slices": 1})
    first = read(evaluate, node).gpus[0].mig[0]
    assert (first.profile, first.slices) == ("1c.3g.20gb", (3, 1))


def test_a_mig_device_without_its_device_node_is_skipped_and_the_others_are_not(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100x2-mig-mixed")
    minors = node.root / "proc" / "driver" / "nvidia-caps" / "mig-minors"
    lines = [line for line in minors.read_text().splitlines() if "gpu0/gi3/ci0" not in line]
    minors.write_text("\n".join(lines))
    inventory = read(evaluate, node)
    assert [mig.index for mig in inventory.gpus[0].mig] == [0, 2, 3]
    [skipped] = inventory.skipped
    assert (skipped.index, skipped.mig_index, skipped.silent) == (0, 1, False)
    assert "gpu0/gi3/ci0/access" in skipped.reason
    assert len(inventory.gpus) == 2


def test_a_gpu_in_mig_mode_without_devices_is_listed(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100-40x8")
    node.set({"gpu.2.mig.mode": 1, "gpu.2.mig.pending": 1, "gpu.2.mig.count": 0})
    gpu = read(evaluate, node).gpus[2]
    assert (gpu.mig_enabled, gpu.mig) == (True, ())


@pytest.mark.parametrize(
    "fault", ["lost", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode"]
)
def test_a_gpu_that_does_not_answer_is_skipped_and_the_others_are_not(
    fault: str, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("v100x4")
    if fault == "lost":
        node.faults.lost(1)
    else:
        node.faults.call(1, fault, "UNKNOWN")
    inventory = read(evaluate, node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 2, 3]
    [skipped] = inventory.skipped
    assert (skipped.index, skipped.mig_index, skipped.silent) == (1, None, True)
    assert "does not answer" in skipped.reason


def test_a_gpu_without_numa_node_has_none(make_node: MakeNode, evaluate: Evaluate) -> None:
    node = make_node("t4x2")
    node.set({"gpu.0.numa": -1})
    node.refresh_root()
    assert [gpu.numa_node for gpu in read(evaluate, node).gpus] == [None, 1]
    assert (
        evaluate(node, "result = read_inventory(Nvml.open(), sysfs / 'x').gpus[1].numa_node")
        is None
    )


def test_a_display_gpu_is_skipped_with_a_notice(make_node: MakeNode, evaluate: Evaluate) -> None:
    node = make_node("t4x2")
    node.set({"gpu.0.name": "NVIDIA DGX Display"})
    inventory = read(evaluate, node)
    assert [gpu.index for gpu in inventory.gpus] == [1]
    assert inventory.skipped == ()
    [notice] = inventory.notices
    assert notice.code is Code.GPU_SKIPPED
    assert "DGX Display" in notice.message


def test_a_gpu_without_memory_of_its_own_is_listed_with_none(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("t4x2")
    for version in ("", "_v2"):
        node.faults.call(0, f"nvmlDeviceGetMemoryInfo{version}", "NOT_SUPPORTED")
    inventory = read(evaluate, node)
    assert [gpu.memory_mib for gpu in inventory.gpus] == [0, 15360]
    assert [notice.code for notice in inventory.notices] == [Code.NO_DEVICE_MEMORY]


def test_gpus_that_are_not_in_exclusive_process_mode_are_listed(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100x2-mig-mixed")
    assert [gpu.index for gpu in read(evaluate, node).not_exclusive] == [1]
    node.set({"gpu.1.compute_mode": 3})
    assert read(evaluate, node).not_exclusive == ()


@pytest.mark.parametrize("driver", [535, 590, 615])
def test_the_inventory_is_the_same_with_every_driver(
    driver: int, make_node: MakeNode, evaluate: Evaluate
) -> None:
    inventory = read(evaluate, make_node("a100x2-mig-mixed", driver=driver))
    assert [mig.profile for mig in inventory.gpus[0].mig] == [
        "3g.20gb",
        "2g.10gb",
        "1g.5gb",
        "1g.5gb",
    ]
    assert inventory.driver_version.startswith(str(driver))


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"mig.0.uuid": "x"}, 6),
        ({"mig.0.gi": 4_000_000_000}, 6),
        ({"mig.0.uuid": "that of another GPU"}, 6),
        ({"mig.max": 4_000_000_000}, 0),
        ({"memory.total": 1 << 30}, 0),
    ],
    ids=["uuid", "instance", "duplicate", "count", "size"],
)
def test_nonsense_about_mig_devices_leaves_the_other_gpu_as_it_is(
    values: dict[str, str], kept: int, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100x2-mig-single")
    before = read(evaluate, node)
    if "that of another GPU" in values.values():
        values = {"mig.0.uuid": before.gpus[1].mig[0].uuid}
    node.set({f"gpu.0.{key}": value for key, value in values.items()})
    inventory = read(evaluate, node)
    other = inventory.gpus[-1]
    if values.get("mig.0.uuid", "").startswith("MIG-"):
        assert other.mig == before.gpus[1].mig[1:]  # it cannot be told whose UUID it is
    else:
        assert other == before.gpus[1]
    assert sum(len(gpu.mig) for gpu in inventory.gpus if gpu.index == 0) == kept
    assert {one.index for one in inventory.skipped} >= {0}


def test_the_kernel_shows_which_gpu_claims_the_uuid_of_another_one(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("v100x4")
    before = read(evaluate, node)
    node.set({"gpu.0.uuid": before.gpus[1].uuid, "gpu.0.minor": before.gpus[2].minor})
    inventory = read(evaluate, node)
    assert inventory.gpus == before.gpus[1:]
    assert [(one.index, one.code) for one in inventory.skipped] == [(0, Code.GPU_IMPLAUSIBLE)]
