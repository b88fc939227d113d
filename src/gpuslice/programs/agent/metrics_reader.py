"""Keeps the metrics in line with the node's state."""

from __future__ import annotations

from gpuslice.node.snapshot import Snapshot
from gpuslice.telemetry.metrics import Metrics


class MetricsReader:
    """A reader of `NodeState`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def read(self, before: Snapshot, after: Snapshot) -> None:
        for pool in after.pools:
            healthy = sum(part.count for part in pool.parts if after.healthy(part))
            self._metrics.devices(pool.resource, healthy, pool.count - healthy)
            in_use = None if after.in_use is None else after.in_use.get(pool.resource, frozenset())
            self._metrics.in_use(pool.resource, None if in_use is None else len(in_use))
        present = {gpu.uuid for gpu in after.inventory.gpus}
        for gpu in before.inventory.gpus:
            if gpu.uuid not in present:
                self._metrics.forget_gpu(gpu.uuid)
        for gpu in after.inventory.gpus:
            self._metrics.gpu(gpu.uuid, gpu.minor, not after.gpu_faults(gpu.uuid))
