"""The labels of a node: a pure function of its hardware and of its pools."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.config.settings import Settings
from gpuslice.gpus.node_facts import NodeFacts
from gpuslice.labels.gpu_models import models_of
from gpuslice.labels.gpuslice_labels import model_labels, resource_labels
from gpuslice.labels.label_syntax import NVIDIA
from gpuslice.labels.node_labels import (
    capability_labels,
    clique_labels,
    machine_labels,
    mode_labels,
    version_labels,
    vgpu_labels,
)
from gpuslice.labels.nvidia_labels import gpu_labels, mig_labels
from gpuslice.labels.sharing import shares_of
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import SharingStrategy

_MEMORY = SharingStrategy.MEMORY.value


def labels_of(
    node: NodeFacts,
    gpus: Sequence[Gpu],
    pools: Sequence[Pool] | None,
    settings: Settings,
    timestamp: int | None = None,
) -> dict[str, str]:
    """Sorted by key.

    `pools` is None if the rules do not fit the node, so that nothing is advertised. `timestamp` is
    the time at which the settings were read; None leaves the label out.
    """
    labels = vgpu_labels(node)
    if timestamp is not None:
        labels[f"{NVIDIA}/gfd.timestamp"] = str(timestamp)
    if not gpus:
        return dict(sorted(labels.items()))
    strategy = settings.rules.mig_strategy
    shares = shares_of(pools or (), settings.rules)
    models = models_of(gpus)
    labels |= machine_labels(node)
    labels |= version_labels(node)
    labels |= capability_labels(gpus, pools or (), strategy)
    labels |= mode_labels(node)
    labels |= clique_labels(node)
    labels |= gpu_labels(models[0], shares)
    sliced = {uuid for uuid, share in shares.items() if share.strategy == _MEMORY}
    labels |= mig_labels([gpu for gpu in gpus if gpu.uuid not in sliced], strategy, shares)
    labels |= model_labels(models, shares)
    labels |= resource_labels(pools or ())
    return dict(sorted(labels.items()))
