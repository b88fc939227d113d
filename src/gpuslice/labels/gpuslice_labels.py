"""Labels beyond NVIDIA's: every model by itself, every resource by its name, memory units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuslice.config.settings import MemorySettings
from gpuslice.labels.gpu_models import Model, family
from gpuslice.labels.label_syntax import LONGEST, OWN_DOMAIN, key_part
from gpuslice.labels.sharing import BY_MEMORY, Share, usual_share
from gpuslice.slicing.catalogue import Catalogue
from gpuslice.slicing.limits import can_limit

# Room for the longest name behind them.
_MODEL_ROOM = LONGEST - len("gpu.") - len(".replicas")
_RESOURCE_ROOM = LONGEST - len("resource.") - len(".capacity")


def model_labels(models: Iterable[Model], shares: Mapping[str, Share]) -> dict[str, str]:
    """NVIDIA's keys have room for one model; these have it for all that the node has."""
    labels: dict[str, object] = {}
    for model in models:
        gpu = model.speaker
        major, minor = gpu.compute_capability
        prefix = f"gpu.{key_part(model.name, _MODEL_ROOM)}"
        labels[f"{prefix}.count"] = len(model.gpus)
        labels[f"{prefix}.memory"] = gpu.memory_mib
        if major > 0:
            labels[f"{prefix}.family"] = family(gpu.compute_capability)
            labels[f"{prefix}.compute"] = f"{major}.{minor}"
        share = usual_share((gpu.uuid for gpu in model.whole), shares)
        labels[f"{prefix}.replicas"] = share.replicas
        labels[f"{prefix}.sharing"] = share.strategy
    return _keyed(labels)


def resource_labels(catalogue: Catalogue | None, memory: MemorySettings) -> dict[str, str]:
    """What can be asked for here: how many devices stand behind it, and how many pieces."""
    if catalogue is None:
        return {}
    labels: dict[str, object] = {}
    for offer in catalogue.resources:
        prefix = _resource(offer.name)
        labels[f"{prefix}.devices"] = len(offer.devices)
        labels[f"{prefix}.capacity"] = sum(offered.replicas or 1 for offered in offer.devices)
        labels[f"{prefix}.sharing"] = offer.strategy.value
    if catalogue.memory:
        labels |= _memory_labels(catalogue, memory)
    return _keyed(labels)


def _memory_labels(catalogue: Catalogue, memory: MemorySettings) -> dict[str, object]:
    prefix = _resource(memory.resource)
    # As the agent cuts them: what cannot be limited or holds no unit is not offered.
    limited = memory.mps_pipe is not None
    cut = [
        memory.unit.units_in(gpu.memory_mib - memory.reserve_mib)
        for gpu in catalogue.memory
        if not limited or can_limit(gpu)
    ]
    units = [count for count in cut if count]
    return {
        f"{prefix}.devices": len(units),
        f"{prefix}.capacity": sum(units),
        f"{prefix}.sharing": BY_MEMORY,
        "memory.unit": memory.unit,
        "memory.unit-mib": memory.unit.mib,
        # The largest slice that one container can have.
        "memory.largest": max(units, default=0),
        # What holds a container to its slice.
        "memory.limits": "mps" if limited else "none",
    }


def _resource(name: str) -> str:
    return f"resource.{key_part(name, _RESOURCE_ROOM)}"


def _keyed(labels: Mapping[str, object]) -> dict[str, str]:
    return {f"{OWN_DOMAIN}/{name}": str(told) for name, told in labels.items()}
