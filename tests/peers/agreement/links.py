"""How close GPUs are, by the simulation's own description and not through the driver.

A second reckoning on purpose: neither plugin's may judge itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from gpuslice_sim.node import SimNode

_SAME_SWITCH, _SAME_ROOT, _SAME_CPU, _ACROSS = 50, 30, 20, 10
_NVLINK = 100


def closeness(node: SimNode, uuids: Iterable[str]) -> int:
    """The sum over all pairs, in the points that NVIDIA gives."""
    state = node.state.values()
    index = {gpu.uuid: gpu.index for gpu in node.gpus()}
    chosen = sorted(index[uuid] for uuid in uuids)
    return sum(_pair(node, state, one, other) for one, other in combinations(chosen, 2))


def _pair(node: SimNode, state: Mapping[str, str], one: int, other: int) -> int:
    def same(key: str) -> bool:
        value = state.get(f"gpu.{one}.{key}", "-1")
        return value != "-1" and value == state.get(f"gpu.{other}.{key}", "-1")

    ways = (("pcie.switch", _SAME_SWITCH), ("pcie.root", _SAME_ROOT), ("numa", _SAME_CPU))
    points = next((points for key, points in ways if same(key)), _ACROSS)
    return points + _NVLINK * _nvlinks(state, one, f"gpu:{node.gpu(other).pci}")


def _nvlinks(state: Mapping[str, str], gpu: int, end: str) -> int:
    """Links through an NVSwitch join all GPUs alike, so they tell no pair from another."""
    count = int(state.get(f"gpu.{gpu}.nvlink.count", "0"))
    return sum(state.get(f"gpu.{gpu}.nvlink.{link}") == end for link in range(count))
