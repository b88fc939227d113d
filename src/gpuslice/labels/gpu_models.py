"""GPUs by model, in the order in which one of them may speak for the node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuslice.labels.label_syntax import words
from gpuslice.slicing.gpu import Gpu

# Compute capability of the first model of each architecture.
_FAMILIES = {
    (1, 0): "tesla",
    (2, 0): "fermi",
    (3, 0): "kepler",
    (4, 0): "undefined",
    (5, 0): "maxwell",
    (6, 0): "pascal",
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 9): "ada-lovelace",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (11, 0): "undefined",
    (12, 0): "blackwell",
    (13, 0): "rubin",
    (14, 0): "undefined",
}


@dataclass(frozen=True, slots=True)
class Model:
    """GPUs of one name, in order of their index; never empty."""

    name: str
    gpus: tuple[Gpu, ...]

    @property
    def whole(self) -> tuple[Gpu, ...]:
        """Those that are not cut by MIG."""
        return tuple(gpu for gpu in self.gpus if not gpu.mig_enabled)

    @property
    def speaker(self) -> Gpu:
        """Whose figures are told: a whole GPU where there is one."""
        return (self.whole or self.gpus)[0]


def models_of(gpus: Iterable[Gpu]) -> list[Model]:
    """The first speaks for the node: one with whole GPUs, of these the most, then the lowest index.

    On a node of one model there is nothing to choose.
    """
    named: dict[str, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        named.setdefault(words(gpu.name), []).append(gpu)
    models = [Model(name, tuple(members)) for name, members in named.items()]
    return sorted(
        models, key=lambda model: (not model.whole, -len(model.gpus), model.gpus[0].index)
    )


def family(capability: tuple[int, int]) -> str:
    """The architecture. (-1, -1) or (0, 0) stand for a GPU that does not tell."""
    earlier = [first for first in _FAMILIES if first <= capability]
    return _FAMILIES[max(earlier)] if earlier else "undefined"
