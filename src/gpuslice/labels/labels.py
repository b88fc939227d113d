"""The labels of a node: a pure function of its hardware and of its pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
from gpuslice.labels.sharing import NOT_ADVERTISED, Sharing, sharing_of
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.pool import Pool


def labels_of(
    node: NodeFacts,
    gpus: Sequence[Gpu],
    pools: Sequence[Pool] | None,
    settings: Settings,
    timestamp: int | None = None,
) -> dict[str, str]:
    """Sorted by key.

    `pools` is None if the rules do not fit the node, so that nothing is advertised. `timestamp` is
    the time at which the settings were loaded; None omits the label.
    """
    labels = vgpu_labels(node)
    if timestamp is not None:
        labels[f"{NVIDIA}/gfd.timestamp"] = str(timestamp)
    if not gpus:
        return dict(sorted(labels.items()))
    strategy = settings.rules.mig_strategy
    sharing = sharing_of(pools or (), settings.rules)
    models = models_of(gpus)
    labels |= machine_labels(node)
    labels |= version_labels(node)
    labels |= capability_labels(gpus, pools or (), strategy)
    labels |= mode_labels(node)
    labels |= clique_labels(node)
    labels |= gpu_labels(models[0], sharing)
    labels |= mig_labels(_mig_layout(gpus, pools, sharing), strategy, sharing)
    labels |= model_labels(models, sharing)
    labels |= resource_labels(pools or ())
    return dict(sorted(labels.items()))


def _mig_layout(
    gpus: Sequence[Gpu], pools: Sequence[Pool] | None, sharing: Mapping[str, Sharing]
) -> list[Gpu]:
    """The GPUs that the labels of MIG devices describe: those that are advertised, as GPU or MIG.

    If there is none, they describe the layout that cannot be advertised. A GPU that is selected for
    memory units never is one of them.
    """
    if pools is None:
        return list(gpus)
    advertised = [gpu for gpu in gpus if any(_replicas(gpu, sharing))]
    return advertised or [gpu for gpu in gpus if gpu.mig_enabled]


def _replicas(gpu: Gpu, sharing: Mapping[str, Sharing]) -> Iterator[int]:
    migs = gpu.mig if gpu.mig_enabled else ()
    for uuid in (gpu.uuid, *(mig.uuid for mig in migs)):
        yield sharing.get(uuid, NOT_ADVERTISED).replicas
