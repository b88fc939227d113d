"""How closely the GPUs of a node are connected. It does not change while they are in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuslice.gpus.nvml import GpuHandle, LinkEnd, NvLink, Nvml, NvmlError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.topology import Topology

# By the common ancestor of two GPUs in the PCI topology, as NVML numbers it.
_PCI_SCORES = {
    0: 60,  # on one board
    10: 50,  # one PCIe switch
    20: 40,  # several switches, one bridge
    30: 30,  # one host bridge
    40: 20,  # one CPU
    50: 10,  # across CPUs
}
_SCORE_PER_LINK = 100


def read_topology(nvml: Nvml, gpus: Sequence[Gpu]) -> Topology:
    """A GPU or link that cannot be read affects only the scores that depend on it."""
    handles = _handles(nvml, gpus)
    links = {gpu.uuid: handles[gpu.uuid].links() for gpu in gpus if gpu.uuid in handles}
    ends = _ends(gpus, links)
    scores: dict[tuple[str, str], int] = {}
    for one, other in combinations(sorted(handles), 2):
        score = _pci_score(handles[one], handles[other])
        score += _SCORE_PER_LINK * _links_between(one, other, ends)
        if score:
            scores[one, other] = score
    return Topology(scores)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The number of links to each other GPU, by UUID, and to NVSwitches."""

    gpus: Mapping[str, int]
    switches: int


def _handles(nvml: Nvml, gpus: Sequence[Gpu]) -> dict[str, GpuHandle]:
    handles = {}
    for gpu in gpus:
        try:
            handles[gpu.uuid] = nvml.gpu(gpu.index)
        except NvmlError:
            continue
    return handles


def _ends(gpus: Sequence[Gpu], links: Mapping[str, tuple[NvLink, ...]]) -> dict[str, _Ends]:
    by_bus_id = {gpu.pci_bus_id: gpu.uuid for gpu in gpus if gpu.pci_bus_id}
    return {uuid: _count(found, by_bus_id) for uuid, found in links.items()}


def _count(links: Sequence[NvLink], by_bus_id: Mapping[str, str]) -> _Ends:
    peers: dict[str, int] = {}
    switches = 0
    for link in links:
        peer = by_bus_id.get(link.bus_id)
        if link.end is LinkEnd.SWITCH:
            switches += 1
        elif peer is not None:
            peers[peer] = peers.get(peer, 0) + 1
    return _Ends(peers, switches)


def _links_between(one: str, other: str, ends: Mapping[str, _Ends]) -> int:
    """The smaller number of both sides: a link that only one side reports is not usable.

    NVSwitches connect all their GPUs alike, so the GPU with fewer links is the bottleneck.
    """
    direct = min(ends[one].gpus.get(other, 0), ends[other].gpus.get(one, 0))
    return direct + min(ends[one].switches, ends[other].switches)


def _pci_score(one: GpuHandle, other: GpuHandle) -> int:
    try:
        return _PCI_SCORES.get(one.common_ancestor(other), 0)
    except NvmlError:
        return 0
