"""Labels that NVIDIA's feature discovery has for GPUs and MIG devices, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuslice.labels.gpu_models import Model, family
from gpuslice.labels.label_syntax import NVIDIA, product
from gpuslice.labels.sharing import Share, usual_share
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy

_ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")


@dataclass(frozen=True, slots=True)
class _Part:
    """A MIG device and the GPU it is a part of."""

    gpu: Gpu
    mig: MigDevice

    @property
    def profile(self) -> str:
        """As it stands in names, where no `+` may."""
        return self.mig.profile.replace("+", ".")


def gpu_labels(model: Model, shares: Mapping[str, Share]) -> dict[str, str]:
    """`count` is of cards: neither replicas nor MIG devices count."""
    share = usual_share((gpu.uuid for gpu in model.whole), shares)
    gpu = model.speaker
    return _keyed(
        "gpu",
        _base(model.name, share, len(model.gpus))
        | ({"memory": gpu.memory_mib} if gpu.memory_mib else {})
        | _architecture(gpu.compute_capability),
    )


def mig_labels(
    gpus: Sequence[Gpu], strategy: MigStrategy, shares: Mapping[str, Share]
) -> dict[str, str]:
    """What MIG devices add to the labels of whole GPUs, or change of them."""
    match strategy:
        case MigStrategy.NONE:
            return {}
        case MigStrategy.SINGLE:
            return _single(gpus, shares)
        case MigStrategy.MIXED:
            labels: dict[str, str] = {}
            for profile, parts in _by_profile(gpus).items():
                labels |= _part_labels(f"mig-{profile}", parts, shares)
            return labels


def _single(gpus: Sequence[Gpu], shares: Mapping[str, Share]) -> dict[str, str]:
    """MIG devices take the place of whole GPUs, if there is but one kind of them."""
    cut = [gpu for gpu in gpus if gpu.mig_enabled]
    if not cut:
        return {}
    profiles = _by_profile(gpus)
    if len(cut) < len(gpus) or not all(gpu.mig for gpu in cut) or len(profiles) != 1:
        nothing = {"count": 0, "replicas": 0, "memory": 0, "sharing-strategy": ""}
        return _keyed("gpu", {"product": product(cut[0].name, "MIG", "INVALID"), **nothing})
    [parts] = profiles.values()
    return _part_labels("gpu", parts, shares)


def _by_profile(gpus: Sequence[Gpu]) -> dict[str, list[_Part]]:
    profiles: dict[str, list[_Part]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        for mig in gpu.mig if gpu.mig_enabled else ():
            part = _Part(gpu, mig)
            profiles.setdefault(part.profile, []).append(part)
    return profiles


def _part_labels(
    prefix: str, parts: Sequence[_Part], shares: Mapping[str, Share]
) -> dict[str, str]:
    first = parts[0]
    share = usual_share((part.mig.uuid for part in parts), shares)
    gi, ci = first.mig.slices
    return _keyed(
        prefix,
        _base(first.gpu.name, share, len(parts), "MIG", first.profile)
        | {
            "memory": first.mig.memory_mib,
            "multiprocessors": first.mig.multiprocessors,
            "slices.gi": gi,
            "slices.ci": ci,
        }
        | {
            f"engines.{name}": count
            for name, count in zip(_ENGINES, first.mig.engines, strict=True)
        },
    )


def _base(name: str, share: Share, count: int, *more: str) -> dict[str, object]:
    return {
        "product": product(name, *more, *(["SHARED"] if share.marked else [])),
        "count": count,
        "replicas": share.replicas,
        "sharing-strategy": share.strategy,
    }


def _architecture(capability: tuple[int, int]) -> dict[str, object]:
    major, minor = capability
    if major <= 0:
        return {}
    return {"family": family(capability), "compute.major": major, "compute.minor": minor}


def _keyed(prefix: str, labels: Mapping[str, object]) -> dict[str, str]:
    return {f"{NVIDIA}/{prefix}.{name}": str(told) for name, told in labels.items()}
