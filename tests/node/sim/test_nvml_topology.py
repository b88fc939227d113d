"""NUMA, PCIe and NVLink."""

from __future__ import annotations

import pynvml
import pytest

from .conftest import Ask, MakeNode

UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("profile", "nodes"),
    [("t4x2", [0, 1]), ("mixed", [0, 0, 1, 1]), ("h100x8", [0, 0, 0, 0, 1, 1, 1, 1])],
)
def test_memory_and_processors_are_those_of_the_numa_node(
    profile: str, nodes: list[int], make_node: MakeNode, ask: Ask
) -> None:
    code = """
answer = []
for h in handles():
    memory = nvmlDeviceGetMemoryAffinity(h, 1, NVML_AFFINITY_SCOPE_NODE)[0]
    cpus = nvmlDeviceGetCpuAffinity(h, 4)
    answer.append([memory, [i for i in range(256) if cpus[i // 64] >> i % 64 & 1]])
"""
    node = make_node(profile)
    found = ask(node, code)
    assert [memory for memory, _ in found] == [1 << numa for numa in nodes]
    values = node.state.values()
    for (_, cpus), numa in zip(found, nodes, strict=True):
        first, last = map(int, values[f"numa.{numa}.cpus"].split("-"))
        assert cpus == list(range(first, last + 1))


def test_a_gpu_without_numa_node_is_near_to_all(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    node.set({"gpu.0.numa": -1})
    code = "answer = [nvmlDeviceGetMemoryAffinity(h, 1, 0)[0] for h in handles()]"
    assert ask(node, code) == [0b11, 0b10]


def test_a_gpu_is_no_numa_node_itself(make_node: MakeNode, ask: Ask) -> None:
    code = "answer = code(nvmlDeviceGetNumaNodeId, handles()[0])"
    assert ask(make_node("h100x8"), code) == UNSUPPORTED


def test_the_common_ancestor_follows_switches_and_sockets(make_node: MakeNode, ask: Ask) -> None:
    code = """
h = handles()
answer = [[nvmlDeviceGetTopologyCommonAncestor(h[0], other) for other in h],
          [nvmlDeviceGetIndex(g) for g in nvmlDeviceGetTopologyNearestGpus(h[2], 10)],
          [nvmlDeviceGetIndex(g) for g in nvmlDeviceGetTopologyNearestGpus(h[2], 50)]]
"""
    single, node, system = 10, 40, 50
    assert ask(make_node("a100-40x8"), code) == [
        [0, single, node, node, system, system, system, system],
        [3],
        [4, 5, 6, 7],
    ]


LINKS = """
answer = []
for h in handles():
    links = []
    for l in range(NVML_NVLINK_MAX_LINKS):
        try:
            if nvmlDeviceGetNvLinkState(h, l):
                links.append([nvmlDeviceGetNvLinkRemotePciInfo(h, l).busId,
                              nvmlDeviceGetNvLinkRemoteDeviceType(h, l),
                              nvmlDeviceGetNvLinkVersion(h, l)])
        except NVMLError_InvalidArgument:
            break
        except NVMLError_NotSupported:
            break
    answer.append(links)
"""


def test_links_of_a_mesh_end_at_the_other_gpus(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("v100x4")
    found = ask(node, LINKS)
    buses = [gpu.pci for gpu in node.gpus()]
    for own, links in zip(buses, found, strict=True):
        others = sorted(bus for bus in buses if bus != own)
        assert sorted({bus for bus, _, _ in links}) == others
        assert len(links) == 6
        assert {(kind, version) for _, kind, version in links} == {(0, 2)}


@pytest.mark.parametrize(
    ("profile", "links", "version", "switches"),
    [("a100-40x8", 12, 3, 6), ("h100x8", 18, 4, 4), ("b200x8", 18, 5, 2)],
)
def test_links_of_a_switched_node_end_at_the_switches(
    profile: str, links: int, version: int, switches: int, make_node: MakeNode, ask: Ask
) -> None:
    for gpu in ask(make_node(profile), LINKS):
        assert len(gpu) == links
        assert {(kind, found) for _, kind, found in gpu} == {(2, version)}
        assert len({bus for bus, _, _ in gpu}) == switches


def test_cards_without_nvlink_say_so(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("l40sx4")
    assert ask(node, LINKS) == [[], [], [], []]
    assert ask(node, "answer = code(nvmlDeviceGetNvLinkState, handles()[0], 0)") == UNSUPPORTED


def test_a_link_that_is_off_is_inactive(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("h100x8")
    node.set({"gpu.0.nvlink.5": "off"})
    assert [len(links) for links in ask(node, LINKS)] == [17] + [18] * 7


def test_peers_reach_each_other_by_nvlink_or_on_the_same_socket(
    make_node: MakeNode, ask: Ask
) -> None:
    code = """
h = handles()
answer = [[nvmlDeviceGetP2PStatus(h[0], other, what) for other in h[1:]]
          for what in (2, 0)]  # NVLink, read
"""
    assert ask(make_node("v100x4"), code) == [[0, 0, 0], [0, 0, 0]]
    assert ask(make_node("a10x4", name="a"), code) == [[5, 5, 5], [0, 1, 1]]


def test_the_fabric_is_complete_on_switched_hopper_nodes(make_node: MakeNode, ask: Ask) -> None:
    code = """
from ctypes import byref
h, old, new = handles()[0], c_nvmlGpuFabricInfo_t(), c_nvmlGpuFabricInfo_v3_t()
answer = code(nvmlDeviceGetGpuFabricInfo, h, byref(old))
if answer == 0:
    nvmlDeviceGetGpuFabricInfoV(h, byref(new))
    answer = [old.state, old.status, list(old.clusterUuid) == [0] * 16, new.state, new.cliqueId]
"""
    complete = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    assert ask(make_node("h100x8"), code) == [complete, 0, True, complete, 0]
    assert ask(make_node("t4x2", name="t"), code) == UNSUPPORTED
