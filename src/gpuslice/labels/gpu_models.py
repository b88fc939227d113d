"""Groups GPUs by model, and selects the model that NVIDIA's labels describe."""

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
    """GPUs with the same name, by index. Never empty."""

    name: str
    gpus: tuple[Gpu, ...]

    @property
    def whole(self) -> tuple[Gpu, ...]:
        """GPUs that are not in MIG mode."""
        return tuple(gpu for gpu in self.gpus if not gpu.mig_enabled)

    @property
    def representative(self) -> Gpu:
        """The GPU whose properties are published: a whole GPU if there is one."""
        return (self.whole or self.gpus)[0]


def models_of(gpus: Iterable[Gpu]) -> list[Model]:
    """NVIDIA's labels describe the first one only.

    Models with whole GPUs come first, then those with the most GPUs, then by index.
    """
    named: dict[str, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        named.setdefault(words(gpu.name), []).append(gpu)
    models = [Model(name, tuple(members)) for name, members in named.items()]
    return sorted(
        models, key=lambda model: (not model.whole, -len(model.gpus), model.gpus[0].index)
    )


def family(capability: tuple[int, int]) -> str:
    """The architecture. (-1, -1) and (0, 0) mean that the GPU does not report its capability."""
    earlier = [first for first in _FAMILIES if first <= capability]
    return _FAMILIES[max(earlier)] if earlier else "undefined"
