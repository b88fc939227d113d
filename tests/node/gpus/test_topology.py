"""Scores of pairs of GPUs, as in NVIDIA's allocator, and for NVSwitch."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpuslice_sim.node import SimNode

from .conftest import Evaluate, MakeNode

ACROSS, CPU, BRIDGE, SWITCH = 10, 20, 30, 50
READ = """
nvml = Nvml.open()
gpus = read_inventory(nvml, sysfs, proc).gpus
topology = read_topology(nvml, gpus)
result = {(a.index, b.index): topology.score(a.uuid, b.uuid) for a in gpus for b in gpus if a != b}
"""


def scores(evaluate: Evaluate, node: SimNode) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = evaluate(node, READ)
    assert all(found[a, b] == found[b, a] for a, b in found)
    return {pair: found[pair] for pair in combinations(sorted({a for a, _ in found}), 2)}


def test_two_cards_on_two_sockets(make_node: MakeNode, evaluate: Evaluate) -> None:
    assert scores(evaluate, make_node("t4x2")) == {(0, 1): ACROSS}


def test_a_mesh_counts_the_links_of_each_pair(make_node: MakeNode, evaluate: Evaluate) -> None:
    found = scores(evaluate, make_node("v100x4"))
    assert found == {
        (0, 1): SWITCH + 200,
        (2, 3): SWITCH + 200,
        **dict.fromkeys(((0, 2), (0, 3), (1, 2), (1, 3)), ACROSS + 200),
    }


@pytest.mark.parametrize(
    ("profile", "links", "pci"),
    [
        ("a100-40x8", 12, {SWITCH, CPU, ACROSS}),
        ("h100x8", 18, {CPU, ACROSS}),
        ("b200x8", 18, {CPU, ACROSS}),
    ],
)
def test_gpus_behind_switches_are_joined_by_all_their_links(
    profile: str, links: int, pci: set[int], make_node: MakeNode, evaluate: Evaluate
) -> None:
    found = scores(evaluate, make_node(profile))
    assert len(found) == 28
    assert {score - 100 * links for score in found.values()} == pci


def test_cards_of_several_models_are_joined_by_pci_alone(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    found = scores(evaluate, make_node("mixed"))
    assert found[0, 1] == found[2, 3] == CPU
    assert {found[pair] for pair in ((0, 2), (0, 3), (1, 2), (1, 3))} == {ACROSS}


def test_one_host_bridge_is_nearer_than_one_cpu(make_node: MakeNode, evaluate: Evaluate) -> None:
    node = make_node("a10x4")
    node.set({"gpu.0.pcie.root": 7, "gpu.1.pcie.root": 7})
    found = scores(evaluate, node)
    assert (found[0, 1], found[2, 3]) == (BRIDGE, CPU)


def test_a_link_that_only_one_end_reports_is_not_counted(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("v100x4")
    values = node.state.values()
    to_second = [
        link
        for link in range(6)
        if values[f"gpu.0.nvlink.{link}"].lower().endswith(node.gpus()[1].pci.lower())
    ]
    node.set({f"gpu.0.nvlink.{to_second[0]}": "off"})
    found = scores(evaluate, node)
    assert (found[0, 1], found[2, 3]) == (SWITCH + 100, SWITCH + 200)


def test_a_gpu_with_fewer_links_to_the_switches_is_a_bit_farther(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("h100x8")
    node.set({f"gpu.3.nvlink.{link}": "off" for link in range(4)})
    found = scores(evaluate, node)
    assert found[0, 1] == CPU + 1800
    assert found[0, 3] == CPU + 1400


def test_a_lost_gpu_costs_only_its_own_pairs(make_node: MakeNode, evaluate: Evaluate) -> None:
    node = make_node("v100x4")
    late = READ.replace("topology =", "node.faults.lost(1); topology =")
    found: dict[tuple[int, int], int] = evaluate(node, late)
    assert all(score == 0 for pair, score in found.items() if 1 in pair)
    assert found[2, 3] == SWITCH + 200
    assert found[0, 2] == ACROSS + 200


@pytest.mark.parametrize(
    ("call", "pair"),
    [
        ("nvmlDeviceGetNvLinkState", SWITCH),
        ("nvmlDeviceGetNvLinkRemotePciInfo_v2", SWITCH),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", SWITCH + 200),
        ("nvmlDeviceGetTopologyCommonAncestor", 200),
    ],
)
def test_a_gpu_that_cannot_be_read_affects_only_its_own_pairs(
    call: str, pair: int, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("v100x4")
    # A pair asks the GPU whose UUID comes first for the common ancestor.
    first = min((0, 1), key=lambda index: node.gpus()[index].uuid)
    node.faults.call(first, call, "UNKNOWN")
    found = scores(evaluate, node)
    assert found[0, 1] == pair
    assert found[2, 3] == SWITCH + 200


def test_a_switch_without_an_address_counts_too(make_node: MakeNode, evaluate: Evaluate) -> None:
    node = make_node("b200x8")
    for index in range(8):
        node.faults.call(index, "nvmlDeviceGetNvLinkRemotePciInfo_v2", "NOT_SUPPORTED")
    assert scores(evaluate, node)[0, 1] == CPU + 1800
