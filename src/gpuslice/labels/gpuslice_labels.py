"""Labels in addition to NVIDIA's: each GPU model, each resource, memory units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuslice.labels.gpu_models import Model, family
from gpuslice.labels.label_syntax import LONGEST, OWN_DOMAIN, key_part
from gpuslice.labels.sharing import Share, usual_share
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.units import MemoryUnit

# What is left for a name between prefix and suffix.
_MODEL_ROOM = LONGEST - len("gpu.") - len(".replicas")
_RESOURCE_ROOM = LONGEST - len("resource.") - len(".capacity")


def model_labels(models: Iterable[Model], shares: Mapping[str, Share]) -> dict[str, str]:
    """NVIDIA's labels describe one model; these describe all models of the node."""
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


def resource_labels(pools: Sequence[Pool]) -> dict[str, str]:
    """What pods can request here: the devices of each resource, and its capacity."""
    labels: dict[str, object] = {}
    for pool in pools:
        prefix = _resource(pool.resource)
        labels[f"{prefix}.devices"] = len(pool.parts)
        labels[f"{prefix}.capacity"] = pool.count
        labels[f"{prefix}.sharing"] = pool.sharing.value
        if pool.unit is not None:
            labels |= _memory_labels(pool, pool.unit)
    return _keyed(labels)


def _memory_labels(pool: Pool, unit: MemoryUnit) -> dict[str, object]:
    return {
        "memory.unit": unit,
        "memory.unit-mib": unit.mib,
        # The largest slice that one container can get.
        "memory.largest": max(part.count for part in pool.parts),
        # What limits a container to its slice.
        "memory.limits": "mps" if pool.daemons else "none",
    }


def _resource(name: str) -> str:
    return f"resource.{key_part(name, _RESOURCE_ROOM)}"


def _keyed(labels: Mapping[str, object]) -> dict[str, str]:
    return {f"{OWN_DOMAIN}/{name}": str(told) for name, told in labels.items()}
