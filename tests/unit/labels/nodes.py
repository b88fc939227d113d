"""Nodes, and their labels without the domain nvidia.com."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.gpus.node_facts import NodeFacts
from gpuslice.labels.collect import pools_or_none
from gpuslice.labels.labels import labels_of
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import DEFAULT_NAME, ReplicaRule, Rules, SharingStrategy

T4 = Gpu("GPU-t4", 0, 0, "Tesla T4", 15360, (7, 5), pci_bus_id="0000:3b:00.0")
A100 = Gpu("GPU-a100", 0, 0, "NVIDIA A100-SXM4-40GB", 40960, (8, 0), mig_capable=True)
L40S = Gpu("GPU-l40s", 0, 0, "NVIDIA L40S", 46068, (8, 9))
FACTS = NodeFacts(driver_version="570.124.06", cuda_version=(12, 8), machine="Test Machine")

SMALL = MigDevice("MIG-s", 0, 7, 0, "1g.5gb", 4864, 14, (1, 1), (1, 0, 0, 0, 0))
LARGE = MigDevice("MIG-l", 0, 1, 0, "3g.20gb", 20096, 42, (3, 3), (3, 2, 0, 0, 0))


def several(gpu: Gpu, count: int, first: int = 0) -> list[Gpu]:
    return [
        replace(gpu, uuid=f"{gpu.uuid}-{index}", index=index, minor=index)
        for index in range(first, first + count)
    ]


def cut(gpu: Gpu, *parts: MigDevice) -> Gpu:
    mig = [
        replace(part, uuid=f"{part.uuid}-{gpu.uuid}-{index}", index=index)
        for index, part in enumerate(parts)
    ]
    return replace(gpu, mig_enabled=True, mig=tuple(mig))


def shared(
    strategy: SharingStrategy, replicas: int, rename: str | None = None, name: str = DEFAULT_NAME
) -> ReplicaRule:
    return ReplicaRule(strategy, name, replicas, rename)


def labels(
    gpus: Sequence[Gpu],
    rules: Rules | None = None,
    facts: NodeFacts = FACTS,
    timestamp: int | None = None,
) -> dict[str, str]:
    """Labels of nvidia.com without the domain, all others by their full key."""
    settings = Settings(
        rules=rules or Rules(),
        containers=ContainerSettings(mps_root="/run/nvidia/mps"),
    )
    found = labels_of(facts, gpus, pools_or_none(gpus, settings), settings, timestamp)
    return {key.removeprefix("nvidia.com/"): value for key, value in found.items()}
