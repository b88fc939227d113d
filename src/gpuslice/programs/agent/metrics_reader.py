"""Keeps the metrics in line with the node's state."""

from __future__ import annotations

from collections import Counter

from gpuslice.codes import Code
from gpuslice.node.snapshot import Snapshot
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.tiers import weakest
from gpuslice.telemetry.metrics import DeviceCounts, Metrics


class MetricsReader:
    """A reader of `NodeState`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def read(self, before: Snapshot, after: Snapshot) -> None:
        for pool in after.pools:
            self._metrics.devices(pool.resource, _counts(pool, after))
        present = {gpu.uuid for gpu in after.inventory.gpus}
        for gpu in before.inventory.gpus:
            if gpu.uuid not in present:
                self._metrics.forget_gpu(gpu.uuid)
        for gpu in after.inventory.gpus:
            self._metrics.gpu(gpu.uuid, gpu.minor, not after.gpu_faults(gpu.uuid))
        self._metrics.binding(None if after.binding is None else after.binding.mode)
        self._metrics.namespaces(after.namespaces)
        tiers = after.tiers
        node = weakest(tiers.values())
        self._metrics.tiers(
            {resource: tier.value for resource, tier in tiers.items()},
            None if node is None else node.value,
        )
        hangs = (f.message for f in after.faults if f.code is Code.DRIVER_NOT_RESPONDING)
        self._metrics.driver(next(hangs, None))


def _counts(pool: Pool, snapshot: Snapshot) -> DeviceCounts:
    held = snapshot.held_ids(pool)
    healthy = advertised = 0
    free: Counter[str] = Counter()
    for position, (part, only) in enumerate(
        zip(pool.parts, snapshot.advertised_ids(pool), strict=True)
    ):
        if not snapshot.healthy(part):
            continue
        healthy += part.count
        advertised += part.count if only is None else len(only)
        if held is not None:
            free[part.device.uuid] += part.count - len(held[position])
    return DeviceCounts(
        healthy=advertised,
        unhealthy=pool.count - healthy,
        withheld=healthy - advertised,
        in_use=None if held is None else sum(map(len, held)),
        free=free,
    )
