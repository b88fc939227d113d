"""Which GPUs are joined most closely: an exact search with a bound on its effort.

NVIDIA's plugin divides all free GPUs into groups and takes a group of the best division. Here
the group itself comes first: no other choice gives the container better links. Among equals,
what remains free decides, so that a request for few GPUs does not break up good groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from gpuslice.slicing.topology import Topology

# All ways to choose among 16 GPUs take less than C(16, 8) = 12,870 steps, so the answer is exact
# for them. Beyond, the best answer found in so many steps is taken, which is never worse than
# choosing greedily and improving by exchanges.
MOST_STEPS = 13_000


def closest(
    topology: Topology,
    held: Sequence[str],
    free: Sequence[str],
    size: int,
    most_steps: int = MOST_STEPS,
) -> list[int]:
    """Positions in `free` of the `size` GPUs to take beside those that are `held` already.

    They maximise the sum of pair scores of the container's GPUs, then that of the GPUs left
    over, and then come first in the order of `free`.
    """
    if size <= 0:
        return []
    if size >= len(free):
        return [*range(len(free))]
    weights, gains = _weigh(topology, held, free)
    guess = _improved(weights, gains, _greedy(weights, gains, size))
    search = _Search(weights, size, _worth(weights, gains, guess), most_steps)
    search.run(gains)
    return search.best or guess


def _weigh(
    topology: Topology, held: Sequence[str], free: Sequence[str]
) -> tuple[list[list[int]], list[int]]:
    """One number for both aims: weights of pairs, and what each GPU gains or costs by itself.

    Taking S leaves pairs worth all - sum(degree of each of S) + pairs(S). So the second aim is
    a sum over S and its pairs like the first, and a factor puts the first above it. Everything
    is doubled, for the bound below to halve.
    """
    scores = [[topology.score(a, b) if a != b else 0 for b in free] for a in free]
    kept = [sum(topology.score(a, b) for b in held) for a in free]
    factor = 1 + sum(abs(score) for row in scores for score in row)
    weights = [[2 * (factor + 1) * score for score in row] for row in scores]
    gains = [2 * (factor * to_held - sum(row)) for to_held, row in zip(kept, scores, strict=True)]
    return weights, gains


class _Search:
    """Depth first in lexicographic order, so the first of several best choices is kept."""

    def __init__(
        self, weights: list[list[int]], size: int, reachable: int, most_steps: int
    ) -> None:
        self.best: list[int] = []
        self._size = size
        # Just below what is known to be reachable: only a choice at least as good is kept.
        self._worth = reachable - 1
        self._steps = most_steps
        self._behind = [row[position + 1 :] for position, row in enumerate(weights)]
        self._hopes = _hopes(weights, size)

    def run(self, gains: list[int]) -> None:
        if self._size == 1:
            self._finish([], 0, gains, 0)
        else:
            self._descend([], 0, gains, 0)

    def _descend(self, picked: list[int], worth: int, gains: list[int], first: int) -> None:
        """`gains` are those of the candidates from position `first` on, given what is picked."""
        left = self._size - len(picked) - 1
        hopes = self._hopes[left]
        for offset in range(len(gains) - left):
            self._steps -= 1
            if self._steps < 0:
                return
            position = first + offset
            behind = [*map(add, gains[offset + 1 :], self._behind[position])]
            so_far = worth + gains[offset]
            if left == 1:
                self._finish([*picked, position], so_far, behind, position + 1)
                continue
            hoped = sorted(map(add, behind, hopes[position + 1 :]))
            if so_far + sum(hoped[-left:]) > self._worth:
                self._descend([*picked, position], so_far, behind, position + 1)

    def _finish(self, picked: list[int], worth: int, gains: list[int], first: int) -> None:
        most = max(gains)
        if worth + most > self._worth:
            self._worth = worth + most
            self.best = [*picked, first + gains.index(most)]


def _hopes(weights: list[list[int]], size: int) -> list[list[int]]:
    """At [n][i]: the most that GPU i can add as one of n, each pair counted half at both ends."""
    ranked = [
        sorted((w for j, w in enumerate(row) if j != i), reverse=True)
        for i, row in enumerate(weights)
    ]
    return [[sum(row[: max(0, n - 1)]) // 2 for row in ranked] for n in range(size)]


def _greedy(weights: list[list[int]], gains: list[int], size: int) -> list[int]:
    gains = list(gains)
    left = set(range(len(gains)))
    picked: list[int] = []
    while len(picked) < size:
        position = max(left, key=lambda candidate: (gains[candidate], -candidate))
        picked.append(position)
        left.remove(position)
        gains = [*map(add, gains, weights[position])]
    return sorted(picked)


def _improved(weights: list[list[int]], gains: list[int], picked: list[int]) -> list[int]:
    """Exchanges one GPU for another as long as that helps, at most once per GPU."""
    for _ in gains:
        pull = [
            gain + sum(row[p] for p in picked) for gain, row in zip(gains, weights, strict=True)
        ]
        exchanges = (
            (pull[new] - pull[old] - weights[old][new], -old, -new)
            for old in picked
            for new in range(len(gains))
            if new not in picked
        )
        improvement, old, new = max(exchanges)
        if improvement <= 0:
            break
        picked = sorted({*picked, -new} - {-old})
    return picked


def _worth(weights: list[list[int]], gains: list[int], picked: Sequence[int]) -> int:
    pairs = sum(weights[a][b] for a in picked for b in picked if a < b)
    return pairs + sum(gains[position] for position in picked)
