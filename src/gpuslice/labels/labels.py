"""What a node is labelled with: a pure function of its hardware and of what it offers."""

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
from gpuslice.slicing.catalogue import Catalogue
from gpuslice.slicing.gpu import Gpu


def labels_of(
    node: NodeFacts,
    gpus: Sequence[Gpu],
    catalogue: Catalogue | None,
    settings: Settings,
    timestamp: int | None = None,
) -> dict[str, str]:
    """In order of their keys.

    `catalogue` is None where the rules do not fit the node, so that nothing is offered; the
    labels say so. `timestamp`: when the settings were read, None to leave it out.
    """
    labels = vgpu_labels(node)
    if timestamp is not None:
        labels[f"{NVIDIA}/gfd.timestamp"] = str(timestamp)
    if not gpus:
        return dict(sorted(labels.items()))
    strategy = settings.rules.mig_strategy
    shares = shares_of(catalogue, settings.rules)
    models = models_of(gpus)
    labels |= machine_labels(node)
    labels |= version_labels(node)
    labels |= capability_labels(gpus, catalogue, strategy)
    labels |= mode_labels(node)
    labels |= clique_labels(node)
    labels |= gpu_labels(models[0], shares)
    in_units = catalogue.memory if catalogue else ()
    labels |= mig_labels([gpu for gpu in gpus if gpu not in in_units], strategy, shares)
    labels |= model_labels(models, shares)
    labels |= resource_labels(catalogue, settings.memory)
    return dict(sorted(labels.items()))
