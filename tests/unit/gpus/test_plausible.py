"""Nonsense about one GPU is the fault of that GPU."""

from __future__ import annotations

from dataclasses import fields, replace
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuslice.gpus.plausible import (
    KernelGpu,
    duplicate_mig_uuids,
    duplicates,
    gpu_problem,
    mig_problem,
    parse_information,
)
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.pool import Part
from gpuslice.slicing.rules import MemoryRule, Rules


def gpu(number: int) -> Gpu:
    return Gpu(
        uuid=f"GPU-{UUID(int=number + 1)}",
        index=number,
        minor=number,
        name="Tesla T4",
        memory_mib=15360,
        compute_capability=(7, 5),
        pci_bus_id=f"0000:{number:02x}:00.0",
    )


NODE = tuple(map(gpu, range(4)))
KERNEL = {one.pci_bus_id: KernelGpu(one.uuid, one.minor) for one in NODE}
MIG = MigDevice(f"MIG-{UUID(int=9)}", 0, 1, 0, "1g.5gb", 4864, 14, (1, 1))

# What a driver could report in place of a property: nonsense, or what belongs to another GPU.
VALUES: dict[str, st.SearchStrategy[object]] = {
    "uuid": st.text() | st.sampled_from([one.uuid for one in NODE]),
    "minor": st.integers(),
    "name": st.text(),
    "memory_mib": st.integers(0, 2**64),
    "compute_capability": st.tuples(st.integers(), st.integers()),
    "pci_bus_id": st.text(),
    "numa_node": st.none() | st.integers(0, 1023),
}
RULES = [Rules(), Rules(memory=MemoryRule())]


def kept(gpus: tuple[Gpu, ...]) -> list[Gpu]:
    """Like `gpus.inventory`."""
    plausible = [one for one in gpus if gpu_problem(one) is None]
    wrong = duplicates(plausible, KERNEL)
    return [one for one in plausible if one.index not in wrong]


def parts(gpus: list[Gpu], rules: Rules, without: int) -> dict[str, list[Part]]:
    pools = catalogue(gpus, rules).pools
    found = {
        pool.resource: [part for part in pool.parts if part.device.index != str(without)]
        for pool in pools
    }
    return {resource: some for resource, some in found.items() if some}


@given(
    st.sampled_from(range(4)),
    st.fixed_dictionaries({}, optional=VALUES).filter(bool),
    st.sampled_from(RULES),
)
def test_any_corruption_of_one_gpu_leaves_the_pools_of_the_others_equal(
    index: int, corruption: dict[str, object], rules: Rules
) -> None:
    others = [one for one in NODE if one.index != index]
    # A GPU that copies everything that identifies another one cannot be told from it.
    assume(corruption.get("pci_bus_id") not in KERNEL)
    corrupt = replace(NODE[index], **corruption)  # type: ignore[arg-type]
    node = (*NODE[:index], corrupt, *NODE[index + 1 :])
    found = kept(node)
    assert [one for one in found if one.index != index] == others
    assert parts(found, rules, without=index) == parts(others, rules, without=index)


@pytest.mark.parametrize("name", [field.name for field in fields(Gpu) if field.name in VALUES])
def test_every_property_is_corrupted_somewhere(name: str) -> None:
    assert name in VALUES


@pytest.mark.parametrize(
    "change",
    [
        {"uuid": ""},
        {"uuid": "GPU-a::1"},
        {"uuid": f"MIG-{UUID(int=1)}"},
        {"name": "Tesla\nT4"},
        {"memory_mib": 1 << 43},
        {"memory_mib": -1},
        {"minor": -1},
        {"minor": 255},
        {"minor": 1 << 31},
        {"pci_bus_id": ""},
        {"pci_bus_id": "../../../etc"},
        {"compute_capability": (1 << 30, 0)},
    ],
)
def test_nonsense_about_a_gpu_is_found(change: dict[str, object]) -> None:
    assert gpu_problem(replace(gpu(0), **change)) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"uuid": "MIG-"},
        {"memory_mib": 0},
        {"memory_mib": 1 << 40},
        {"slices": (0, 1)},
        {"slices": (1, 1 << 20)},
        {"gpu_instance": -1},
        {"compute_instance": 1 << 20},
    ],
)
def test_nonsense_about_a_mig_device_is_found(change: dict[str, object]) -> None:
    assert mig_problem(MIG, 40960) is None
    assert mig_problem(replace(MIG, **change), 40960) is not None  # type: ignore[arg-type]


def test_the_kernel_shows_whose_uuid_and_device_node_it_is() -> None:
    liar = replace(gpu(1), uuid=gpu(0).uuid, minor=2)
    node = [gpu(0), liar, gpu(2), gpu(3)]
    assert duplicates(node, KERNEL).keys() == {1}
    assert duplicates(node, {}).keys() == {0, 1, 2}
    assert duplicates(NODE, {}) == {}


def test_a_mig_device_with_the_uuid_of_another_one_is_found() -> None:
    node = [replace(gpu(0), mig=(MIG,)), replace(gpu(1), mig=(MIG,)), gpu(2)]
    assert duplicate_mig_uuids(node) == {MIG.uuid}
    assert duplicate_mig_uuids(node[1:]) == frozenset()


def test_the_kernels_description_of_a_gpu_is_read() -> None:
    text = (
        "Model: \t\t Tesla T4\nGPU UUID: \t GPU-1\nBus Location: 0000:3b:00.0\nDevice Minor: \t 3\n"
    )
    assert parse_information(text) == KernelGpu("GPU-1", 3)
    assert parse_information("Model: x\n") is None
    assert parse_information("") is None
