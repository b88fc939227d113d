"""Labels of GPUs and MIG devices, with the keys of NVIDIA's feature discovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuslice.labels.gpu_models import Model, family
from gpuslice.labels.label_syntax import NVIDIA, product, with_prefix
from gpuslice.labels.sharing import Sharing, most_common
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy

_ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")


@dataclass(frozen=True, slots=True)
class _MigEntry:
    """A MIG device and its GPU."""

    gpu: Gpu
    mig: MigDevice

    @property
    def profile(self) -> str:
        """As in resource names, which cannot contain `+`."""
        return self.mig.profile.replace("+", ".")


def gpu_labels(model: Model, sharing: Mapping[str, Sharing]) -> dict[str, str]:
    """`count` is the number of GPUs, not of replicas or MIG devices."""
    usual = most_common((gpu.uuid for gpu in model.whole), sharing)
    gpu = model.representative
    return _labels(
        "gpu",
        _base(model.name, usual, len(model.gpus))
        | ({"memory": gpu.memory_mib} if gpu.memory_mib else {})
        | _architecture(gpu.compute_capability),
    )


def mig_labels(
    gpus: Sequence[Gpu], strategy: MigStrategy, sharing: Mapping[str, Sharing]
) -> dict[str, str]:
    """Labels that MIG devices add to those of whole GPUs, or replace."""
    match strategy:
        case MigStrategy.NONE:
            return {}
        case MigStrategy.SINGLE:
            return _single(gpus, sharing)
        case MigStrategy.MIXED:
            labels: dict[str, str] = {}
            for profile, entries in _by_profile(gpus).items():
                labels |= _mig_device_labels(f"mig-{profile}", entries, sharing)
            return labels


def _single(gpus: Sequence[Gpu], sharing: Mapping[str, Sharing]) -> dict[str, str]:
    """MIG devices replace whole GPUs in the labels, if all of them have the same profile."""
    in_mig_mode = [gpu for gpu in gpus if gpu.mig_enabled]
    if not in_mig_mode:
        return {}
    profiles = _by_profile(gpus)
    has_whole_gpus = len(in_mig_mode) < len(gpus)
    if has_whole_gpus or not all(gpu.mig for gpu in in_mig_mode) or len(profiles) != 1:
        invalid = product(in_mig_mode[0].name, "MIG", "INVALID")
        none = {"count": 0, "replicas": 0, "memory": 0, "sharing-strategy": ""}
        return _labels("gpu", {"product": invalid, **none})
    [entries] = profiles.values()
    return _mig_device_labels("gpu", entries, sharing)


def _by_profile(gpus: Sequence[Gpu]) -> dict[str, list[_MigEntry]]:
    profiles: dict[str, list[_MigEntry]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        for mig in gpu.mig if gpu.mig_enabled else ():
            entry = _MigEntry(gpu, mig)
            profiles.setdefault(entry.profile, []).append(entry)
    return profiles


def _mig_device_labels(
    prefix: str, entries: Sequence[_MigEntry], sharing: Mapping[str, Sharing]
) -> dict[str, str]:
    first = entries[0]
    usual = most_common((entry.mig.uuid for entry in entries), sharing)
    gi, ci = first.mig.slices
    return _labels(
        prefix,
        _base(first.gpu.name, usual, len(entries), "MIG", first.profile)
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


def _base(name: str, sharing: Sharing, count: int, *suffixes: str) -> dict[str, object]:
    return {
        "product": product(name, *suffixes, *(["SHARED"] if sharing.marked else [])),
        "count": count,
        "replicas": sharing.replicas,
        "sharing-strategy": sharing.strategy,
    }


def _architecture(capability: tuple[int, int]) -> dict[str, object]:
    major, minor = capability
    if major <= 0:
        return {}
    return {"family": family(capability), "compute.major": major, "compute.minor": minor}


def _labels(prefix: str, labels: Mapping[str, object]) -> dict[str, str]:
    return with_prefix(f"{NVIDIA}/{prefix}.", labels)
