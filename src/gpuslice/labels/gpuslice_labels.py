"""Labels in addition to NVIDIA's: each GPU model, each resource, memory units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuslice.labels.gpu_models import Model, family
from gpuslice.labels.label_syntax import LONGEST, OWN_DOMAIN, key_part, with_prefix
from gpuslice.labels.sharing import Sharing, most_common
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.tiers import Tier, weakest
from gpuslice.slicing.units import MemoryUnit

_PREFIX = f"{OWN_DOMAIN}/"
# Names that fit between the prefix and the longest suffix.
_LONGEST_MODEL = LONGEST - len("gpu.") - len(".replicas")
_LONGEST_RESOURCE = LONGEST - len("resource.") - len(".advertise")


def model_labels(models: Iterable[Model], sharing: Mapping[str, Sharing]) -> dict[str, str]:
    """NVIDIA's labels describe one model; these describe all models of the node."""
    labels: dict[str, object] = {}
    for model in models:
        gpu = model.representative
        major, minor = gpu.compute_capability
        prefix = f"gpu.{key_part(model.name, _LONGEST_MODEL)}"
        labels[f"{prefix}.count"] = len(model.gpus)
        labels[f"{prefix}.memory"] = gpu.memory_mib
        if major > 0:
            labels[f"{prefix}.family"] = family(gpu.compute_capability)
            labels[f"{prefix}.compute"] = f"{major}.{minor}"
        usual = most_common((gpu.uuid for gpu in model.whole), sharing)
        labels[f"{prefix}.replicas"] = usual.replicas
        labels[f"{prefix}.sharing"] = usual.strategy
    return with_prefix(_PREFIX, labels)


def resource_labels(pools: Sequence[Pool]) -> dict[str, str]:
    """What pods can request here: the devices of each resource, and its capacity."""
    labels: dict[str, object] = {}
    for pool in pools:
        prefix = _resource(pool.resource)
        labels[f"{prefix}.devices"] = len(pool.parts)
        labels[f"{prefix}.capacity"] = pool.count
        labels[f"{prefix}.sharing"] = pool.sharing.value
        if pool.advertises_one_gpu:
            # Allocatable counts the free devices of one GPU at a time.
            labels[f"{prefix}.advertise"] = pool.advertise.value
        if pool.unit is not None:
            labels |= _memory_labels(pool, pool.unit)
    return with_prefix(_PREFIX, labels)


def binding_labels(mode: str | None, *, namespaces: bool | None = None) -> dict[str, str]:
    """How containers get their limits: `cdi`, or `env`, which pods can override.

    `namespaces`: whether those of MPS hold their programs; None: they cannot be used.
    """
    labels: dict[str, object] = {} if mode is None else {"limits.bind": mode}
    if namespaces is not None:
        labels["limits.namespaces"] = str(namespaces).lower()
    return with_prefix(_PREFIX, labels)


def tier_labels(tiers: Mapping[str, Tier]) -> dict[str, str]:
    """How firmly limits hold: of each resource, and at least on this node."""
    node = weakest(tiers.values())
    if node is None:
        return {}
    labels: dict[str, object] = {"limits.tier": node.value}
    for resource, tier in tiers.items():
        labels[f"{_resource(resource)}.tier"] = tier.value
    return with_prefix(_PREFIX, labels)


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
    return f"resource.{key_part(name, _LONGEST_RESOURCE)}"
