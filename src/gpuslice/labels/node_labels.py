"""Labels of the node as a whole: driver, machine, PCI mode, fabric, virtual GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.gpus.node_facts import UNKNOWN, NodeFacts
from gpuslice.labels.label_syntax import NVIDIA, value, words
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MigStrategy, SharingStrategy

# By PCI class. The mode is unknown if GPUs differ or their class cannot be read.
_MODES: dict[int | None, str] = {0x030000: "graphics", 0x030200: "compute"}


def machine_labels(facts: NodeFacts) -> dict[str, str]:
    return {f"{NVIDIA}/gpu.machine": value(facts.machine)}


def version_labels(facts: NodeFacts) -> dict[str, str]:
    """Each version twice: under its current name and under its deprecated one."""
    driver = words(facts.driver_version or ".".join([UNKNOWN] * 3))
    major, minor, revision = [*driver.split(".", 2), "", ""][:3]
    cuda_major, cuda_minor = map(str, facts.cuda_version)
    named = {
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": driver,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
    }
    return {f"{NVIDIA}/{name}": value(text) for name, text in named.items()}


def capability_labels(
    gpus: Sequence[Gpu], pools: Sequence[Pool], strategy: MigStrategy
) -> dict[str, str]:
    labels = {
        f"{NVIDIA}/mig.capable": _boolean(any(gpu.mig_capable for gpu in gpus)),
        f"{NVIDIA}/mps.capable": _boolean(
            any(pool.sharing is SharingStrategy.MPS for pool in pools)
        ),
    }
    if strategy is not MigStrategy.NONE:
        labels[f"{NVIDIA}/mig.strategy"] = strategy.value
    return labels


def mode_labels(facts: NodeFacts) -> dict[str, str]:
    classes = set(facts.pci_classes)
    only = classes.pop() if len(classes) == 1 else None
    return {f"{NVIDIA}/gpu.mode": _MODES.get(only, UNKNOWN)}


def clique_labels(facts: NodeFacts) -> dict[str, str]:
    """A node belongs to a clique only if all its GPUs do."""
    fabrics = set(facts.fabrics)
    if len(fabrics) != 1:
        return {}
    fabric = fabrics.pop()
    return {f"{NVIDIA}/gpu.clique": value(f"{fabric.cluster}.{fabric.clique}")}


def vgpu_labels(facts: NodeFacts) -> dict[str, str]:
    if facts.vgpus is None:
        return {}
    labels = {f"{NVIDIA}/vgpu.present": _boolean(bool(facts.vgpus))}
    for vgpu in facts.vgpus:
        if vgpu.host_driver_version is not None:
            labels[f"{NVIDIA}/vgpu.host-driver-version"] = value(vgpu.host_driver_version)
        if vgpu.host_driver_branch is not None:
            labels[f"{NVIDIA}/vgpu.host-driver-branch"] = value(vgpu.host_driver_branch)
    return labels


def _boolean(fact: bool) -> str:  # noqa: FBT001
    return "true" if fact else "false"
