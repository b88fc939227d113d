"""The labels of NVIDIA's feature discovery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.gpus.node_facts import NodeFacts, Vgpu
from gpuslice.gpus.nvml import Fabric
from gpuslice.slicing.rules import (
    MigStrategy,
    NamedShare,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)

from .nodes import A100, FACTS, L40S, LARGE, SMALL, T4, cut, labels, several, shared

SINGLE = Rules(mig_strategy=MigStrategy.SINGLE)
MIXED = Rules(mig_strategy=MigStrategy.MIXED)
COMPUTE, GRAPHICS = 0x030200, 0x030000


def test_a_node_of_one_model_is_labelled_completely() -> None:
    facts = replace(FACTS, pci_classes=(COMPUTE, COMPUTE))
    found = labels(several(T4, 2), facts=facts)
    assert {k: v for k, v in found.items() if not k.startswith("gpuslice.io/")} == {
        "cuda.driver-version.full": "570.124.06",
        "cuda.driver-version.major": "570",
        "cuda.driver-version.minor": "124",
        "cuda.driver-version.revision": "06",
        "cuda.driver.major": "570",
        "cuda.driver.minor": "124",
        "cuda.driver.rev": "06",
        "cuda.runtime-version.full": "12.8",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "8",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "8",
        "gpu.compute.major": "7",
        "gpu.compute.minor": "5",
        "gpu.count": "2",
        "gpu.family": "turing",
        "gpu.machine": "Test-Machine",
        "gpu.memory": "15360",
        "gpu.mode": "compute",
        "gpu.product": "Tesla-T4",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "false",
        "mps.capable": "false",
        "vgpu.present": "false",
    }


def test_labels_come_in_the_order_of_their_keys() -> None:
    found = labels(several(T4, 2), timestamp=5)
    assert list(found) == sorted(found, key=lambda key: key if "/" in key else f"nvidia.com/{key}")


def test_a_node_without_gpus_has_only_labels_that_need_no_gpu() -> None:
    assert labels([], timestamp=1700000000) == {
        "gfd.timestamp": "1700000000",
        "vgpu.present": "false",
    }


def test_the_timestamp_is_omitted_unless_it_is_set() -> None:
    assert "gfd.timestamp" not in labels([T4])
    assert labels([T4], timestamp=7)["gfd.timestamp"] == "7"


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("535.86", ("535", "86", "")),
        ("", ("unknown", "unknown", "unknown")),
        ("600", ("600", "", "")),
    ],
)
def test_a_driver_version_may_have_fewer_components(
    version: str, parts: tuple[str, str, str]
) -> None:
    found = labels([T4], facts=replace(FACTS, driver_version=version))
    major, minor, revision = parts
    assert found["cuda.driver-version.major"] == found["cuda.driver.major"] == major
    assert found["cuda.driver-version.minor"] == found["cuda.driver.minor"] == minor
    assert found["cuda.driver-version.revision"] == found["cuda.driver.rev"] == revision


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Standard PC (Q35 + ICH9, 2009)", "Standard-PC-Q35-ICH9-2009"),
        ("To Be Filled By O.E.M.", "To-Be-Filled-By-O.E.M"),
        ("unknown", "unknown"),
    ],
)
def test_the_name_of_the_machine_is_converted_to_a_valid_label(name: str, label: str) -> None:
    assert labels([T4], facts=replace(FACTS, machine=name))["gpu.machine"] == label


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        ((COMPUTE, COMPUTE), "compute"),
        ((GRAPHICS, GRAPHICS), "graphics"),
        ((COMPUTE, GRAPHICS), "unknown"),
        ((COMPUTE, None), "unknown"),
        ((None, None), "unknown"),
        ((0x120000,), "unknown"),
        ((), "unknown"),
    ],
)
def test_the_mode_is_that_of_all_gpus_or_unknown(
    classes: tuple[int | None, ...], mode: str
) -> None:
    assert labels([T4], facts=replace(FACTS, pci_classes=classes))["gpu.mode"] == mode


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        # The first and the last of each.
        ((1, 0), "tesla"), ((1, 9), "tesla"), ((2, 0), "fermi"), ((2, 9), "fermi"),
        ((3, 0), "kepler"), ((3, 9), "kepler"), ((4, 0), "undefined"), ((4, 9), "undefined"),
        ((5, 0), "maxwell"), ((5, 9), "maxwell"), ((6, 0), "pascal"), ((6, 9), "pascal"),
        ((7, 0), "volta"), ((7, 4), "volta"), ((7, 5), "turing"), ((7, 9), "turing"),
        ((8, 0), "ampere"), ((8, 8), "ampere"), ((8, 9), "ada-lovelace"), ((8, 10), "ada-lovelace"),
        ((9, 0), "hopper"), ((9, 9), "hopper"), ((10, 0), "blackwell"), ((10, 9), "blackwell"),
        ((11, 0), "undefined"), ((11, 9), "undefined"), ((12, 0), "blackwell"),
        ((12, 9), "blackwell"), ((13, 0), "rubin"), ((13, 9), "rubin"), ((14, 0), "undefined"),
    ],
)  # fmt: skip
def test_the_family_follows_from_the_compute_capability(
    capability: tuple[int, int], family: str
) -> None:
    assert labels([replace(T4, compute_capability=capability)])["gpu.family"] == family


def test_a_gpu_that_does_not_report_its_properties_has_no_labels_for_them() -> None:
    found = labels([replace(T4, compute_capability=(0, 0), memory_mib=0)])
    assert not {"gpu.family", "gpu.compute.major", "gpu.memory"} & set(found)
    assert found["gpu.product"] == "Tesla-T4"


class TestFabric:
    NVL = Fabric("5e5c2d80-0000-4000-8000-000000000001", 3)

    def test_gpus_of_one_clique_name_it(self) -> None:
        found = labels(several(A100, 2), facts=replace(FACTS, fabrics=(self.NVL, self.NVL)))
        assert found["gpu.clique"] == "5e5c2d80-0000-4000-8000-000000000001.3"

    def test_gpus_of_two_cliques_name_none(self) -> None:
        other = replace(self.NVL, clique=4)
        found = labels(several(A100, 2), facts=replace(FACTS, fabrics=(self.NVL, other)))
        assert "gpu.clique" not in found

    def test_gpus_outside_of_a_fabric_name_none(self) -> None:
        assert "gpu.clique" not in labels([A100])


class TestVgpu:
    def test_a_virtual_gpu_has_labels_of_its_host_driver(self) -> None:
        found = labels([T4], facts=replace(FACTS, vgpus=(Vgpu("460.16", "r460_00"),)))
        assert found["vgpu.present"] == "true"
        assert found["vgpu.host-driver-version"] == "460.16"
        assert found["vgpu.host-driver-branch"] == "r460_00"

    def test_a_hypervisor_may_not_report_its_driver(self) -> None:
        found = labels([T4], facts=replace(FACTS, vgpus=(Vgpu(),)))
        assert found["vgpu.present"] == "true"
        assert "vgpu.host-driver-version" not in found

    def test_vgpus_that_cannot_be_read_have_no_labels(self) -> None:
        facts = NodeFacts(driver_version="570.1", vgpus=None)
        assert not [key for key in labels([T4], facts=facts) if key.startswith("vgpu.")]


class TestSharing:
    @pytest.mark.parametrize(
        ("strategy", "mps"),
        [(SharingStrategy.TIME_SLICING, "false"), (SharingStrategy.MPS, "true")],
    )
    def test_replicas_are_labelled_per_gpu(self, strategy: SharingStrategy, mps: str) -> None:
        found = labels(several(T4, 2), Rules(replicas=(shared(strategy, 4),)))
        assert found["gpu.product"] == "Tesla-T4-SHARED"
        assert found["gpu.count"] == "2"
        assert found["gpu.replicas"] == "4"
        assert found["gpu.sharing-strategy"] == strategy.value
        assert found["mps.capable"] == mps

    def test_renamed_replicas_leave_the_product_its_name(self) -> None:
        rule = shared(SharingStrategy.TIME_SLICING, 4, "nvidia.com/gpu.shared")
        found = labels(several(T4, 2), Rules(replicas=(rule,)))
        assert found["gpu.product"] == "Tesla-T4"
        assert found["gpu.replicas"] == "4"
        assert found["gpu.sharing-strategy"] == "time-slicing"

    def test_the_labels_describe_how_most_gpus_are_shared(self) -> None:
        rule = ReplicaRule(
            SharingStrategy.TIME_SLICING,
            "nvidia.com/gpu",
            4,
            "nvidia.com/gpu.shared",
            Selection(references=("0",)),
        )
        found = labels(several(T4, 3), Rules(replicas=(rule,)))
        assert found["gpu.replicas"] == "1"
        assert found["gpu.sharing-strategy"] == "none"

    def test_mps_on_a_gpu_in_mig_mode_is_not_possible(self) -> None:
        rule = shared(SharingStrategy.MPS, 2)
        found = labels([cut(A100, SMALL)], Rules(replicas=(rule,)))
        assert found["mps.capable"] == "false"

    def test_mps_is_used_on_gpus_that_are_not_in_mig_mode(self) -> None:
        gpus = several(A100, 3)
        rule = shared(SharingStrategy.MPS, 2)
        found = labels([cut(gpus[0], SMALL), *gpus[1:]], Rules(replicas=(rule,)))
        assert found["mps.capable"] == "true"
        assert found["gpu.count"] == "3"
        assert found["gpuslice.io/resource.nvidia.com_gpu.devices"] == "2"
        assert found["gpuslice.io/resource.nvidia.com_gpu.capacity"] == "4"

    def test_a_single_replica_with_mps_is_not_marked_as_shared(self) -> None:
        found = labels([T4], Rules(replicas=(shared(SharingStrategy.MPS, 1),)))
        assert found["gpu.replicas"] == "1"
        assert found["gpu.sharing-strategy"] == "mps"
        assert found["gpu.product"] == "Tesla-T4"


def test_a_gpu_with_named_shares_has_as_many_replicas_as_shares() -> None:
    shares = (NamedShare("large", 4096), NamedShare("small", 1024, count=3))
    found = labels([T4], Rules(replicas=(replace(shared(SharingStrategy.MPS, 4), shares=shares),)))
    assert found["gpu.replicas"] == "4"
    assert found["gpu.sharing-strategy"] == "mps"
    # No pod gets a share by the name of whole GPUs.
    assert found["gpu.product"] == "Tesla-T4"
    assert found["gpuslice.io/resource.nvidia.com_gpu.large.capacity"] == "1"
    assert found["gpuslice.io/resource.nvidia.com_gpu.small.capacity"] == "3"


class TestMig:
    def test_gpus_in_mig_mode_are_counted_and_not_advertised(self) -> None:
        found = labels([cut(A100, *[SMALL] * 7)])
        assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
        assert found["gpu.count"] == "1"
        assert found["gpu.replicas"] == "0"
        assert found["mig.capable"] == "true"
        assert "mig.strategy" not in found

    def test_whole_gpus_represent_those_in_mig_mode(self) -> None:
        first, second = several(A100, 2)
        found = labels([cut(first, SMALL), second])
        assert found["gpu.count"] == "2"
        assert found["gpu.replicas"] == "1"

    def test_single_labels_describe_the_one_kind_of_device(self) -> None:
        found = labels([cut(gpu, *[SMALL] * 7) for gpu in several(A100, 2)], SINGLE)
        expected = {
            "mig.strategy": "single",
            "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
            "gpu.count": "14",
            "gpu.replicas": "1",
            "gpu.sharing-strategy": "none",
            "gpu.memory": "4864",
            "gpu.multiprocessors": "14",
            "gpu.slices.gi": "1",
            "gpu.slices.ci": "1",
            "gpu.engines.copy": "1",
            "gpu.engines.decoder": "0",
            "gpu.engines.encoder": "0",
            "gpu.engines.jpeg": "0",
            "gpu.engines.ofa": "0",
            "gpu.family": "ampere",
        }
        assert expected.items() <= found.items()

    def test_mig_devices_of_single_can_be_shared(self) -> None:
        rules = replace(SINGLE, replicas=(shared(SharingStrategy.TIME_SLICING, 3),))
        found = labels([cut(A100, SMALL, SMALL)], rules)
        assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"
        assert found["gpu.count"] == "2"
        assert found["gpu.replicas"] == "3"

    def test_single_labels_describe_the_gpus_that_are_advertised(self) -> None:
        first, second, third = several(A100, 3)
        found = labels([cut(first, SMALL), second, third], SINGLE)
        assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
        assert found["gpu.replicas"] == "1"
        found = labels([cut(first, SMALL), cut(second, SMALL), third], SINGLE)
        assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
        assert found["gpu.count"] == "2"

    def test_single_without_mig_is_as_none(self) -> None:
        found = labels([A100], SINGLE)
        assert found["mig.strategy"] == "single"
        assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
        assert found["gpu.replicas"] == "1"

    @pytest.mark.parametrize(
        "layout",
        [
            pytest.param([cut(several(A100, 1)[0], LARGE, SMALL)], id="two-kinds"),
            pytest.param([cut(several(A100, 1)[0])], id="empty"),
        ],
    )
    def test_a_layout_that_single_cannot_advertise_is_labelled_as_invalid(
        self, layout: list[object]
    ) -> None:
        found = labels(layout, SINGLE)  # type: ignore[arg-type]
        expected = {
            "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID",
            "gpu.count": "0",
            "gpu.replicas": "0",
            "gpu.memory": "0",
            "gpu.sharing-strategy": "",
            "gpu.family": "ampere",
            "mig.strategy": "single",
        }
        assert expected.items() <= found.items()
        assert "gpu.slices.gi" not in found

    def test_mixed_labels_describe_every_kind_of_device(self) -> None:
        first, second = several(A100, 2)
        found = labels([cut(first, LARGE, SMALL, SMALL), second], MIXED)
        expected = {
            "mig.strategy": "mixed",
            "gpu.product": "NVIDIA-A100-SXM4-40GB",
            "gpu.count": "2",
            "gpu.replicas": "1",
            "mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
            "mig-1g.5gb.count": "2",
            "mig-1g.5gb.replicas": "1",
            "mig-1g.5gb.sharing-strategy": "none",
            "mig-3g.20gb.count": "1",
            "mig-3g.20gb.multiprocessors": "42",
            "mig-3g.20gb.engines.decoder": "2",
        }
        assert expected.items() <= found.items()

    def test_a_profile_with_an_extension_is_named_as_its_resource(self) -> None:
        found = labels([cut(A100, replace(SMALL, profile="1g.10gb+me"))], MIXED)
        assert found["mig-1g.10gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.10gb.me"

    def test_one_profile_can_be_shared_and_another_not(self) -> None:
        rule = shared(SharingStrategy.TIME_SLICING, 5, name="nvidia.com/mig-1g.5gb")
        found = labels([cut(A100, LARGE, SMALL)], replace(MIXED, replicas=(rule,)))
        assert found["mig-1g.5gb.replicas"] == "5"
        assert found["mig-1g.5gb.sharing-strategy"] == "time-slicing"
        assert found["mig-1g.5gb.product"].endswith("-MIG-1g.5gb-SHARED")
        assert found["mig-3g.20gb.replicas"] == "1"


class TestModels:
    def test_the_labels_describe_the_model_with_the_most_gpus(self) -> None:
        found = labels([*several(L40S, 1), *several(T4, 2, 1), *several(A100, 1, 3)])
        assert found["gpu.product"] == "Tesla-T4"
        assert found["gpu.count"] == "2"
        assert found["gpu.memory"] == "15360"

    def test_in_a_tie_the_labels_describe_the_model_with_the_lowest_index(self) -> None:
        found = labels([*several(T4, 1, 1), *several(L40S, 1, 0)])
        assert found["gpu.product"] == "NVIDIA-L40S"

    def test_whole_gpus_come_before_those_in_mig_mode(self) -> None:
        parted = [cut(gpu, SMALL) for gpu in several(A100, 2)]
        found = labels([*parted, *several(T4, 1, 2)])
        assert found["gpu.product"] == "Tesla-T4"
