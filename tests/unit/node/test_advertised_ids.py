"""Which ids of a pool are advertised, by which containers hold what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.gpus.faults import Fault
from gpuslice.node.snapshot import Snapshot
from gpuslice.programs.agent.metrics_reader import MetricsReader
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import Advertise, MemoryRule, SharingStrategy
from gpuslice.telemetry.metrics import DeviceCounts, Recorder

RESOURCE = "aliyun.com/gpu-mem"


def pool(*gib: int, advertise: Advertise = Advertise.ONE_GPU) -> Pool:
    gpus = [Gpu(f"GPU-{n}", n, n, "T4", size * 1024, (7, 5)) for n, size in enumerate(gib)]
    found, _ = memory_pool(gpus, MemoryRule(advertise=advertise))
    assert found is not None
    return found


def held(*units: int) -> frozenset[str]:
    """The first units of each GPU."""
    return frozenset(f"GPU-{n}-_-{unit}" for n, count in enumerate(units) for unit in range(count))


def node(a_pool: Pool, *units: int, faults: tuple[Fault, ...] = ()) -> Snapshot:
    return Snapshot(pools=(a_pool,), in_use={RESOURCE: held(*units)}, faults=faults)


def advertised(snapshot: Snapshot) -> list[int]:
    """The number of advertised ids by GPU."""
    [one] = snapshot.pools
    counts = [part.count for part in one.parts]
    found = snapshot.advertised_ids(one)
    return [count if ids is None else len(ids) for count, ids in zip(counts, found, strict=True)]


@pytest.mark.parametrize(
    ("sizes", "units", "expected"),
    [
        ((15, 15), (0, 0), [15, 0]),
        ((15, 15), (9, 0), [9, 15]),
        ((15, 15), (9, 9), [15, 9]),
        ((15, 15), (15, 15), [15, 15]),
        ((15, 40), (0, 30), [15, 30]),
        ((15, 40), (0, 20), [0, 40]),
    ],
)
def test_the_gpu_with_the_most_free_units_is_advertised(
    sizes: tuple[int, ...], units: tuple[int, ...], expected: list[int]
) -> None:
    assert advertised(node(pool(*sizes), *units)) == expected


def test_a_gpu_that_is_unhealthy_is_not_chosen() -> None:
    broken = (Fault(Code.XID, "XID 79", gpu="GPU-1"),)
    assert advertised(node(pool(15, 15), 9, 0, faults=broken)) == [15, 0]


def test_nothing_is_withheld_if_usage_is_unknown() -> None:
    snapshot = replace(node(pool(15, 15), 9, 0), in_use=None)
    assert snapshot.advertised_ids(snapshot.pools[0]) == (None, None)


@pytest.mark.parametrize(
    "other",
    [
        pool(15, 15, advertise=Advertise.ALL),
        pool(15),
        replace(pool(15, 15), one_share_per_container=True),
        replace(pool(15, 15), sharing=SharingStrategy.TIME_SLICING),
    ],
    ids=["all", "one GPU", "one share per container", "shares of several GPUs"],
)
def test_nothing_is_withheld_if_every_pod_can_use_what_is_free(other: Pool) -> None:
    assert advertised(node(other)) == [part.count for part in other.parts]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0, 1)), min_size=1, max_size=6),
    st.integers(1, 25),
)
def test_what_looks_free_fits_on_one_gpu_and_what_fits_on_one_gpu_looks_free(
    gpus: list[tuple[int, float]], request: int
) -> None:
    sizes = [size for size, _ in gpus]
    units = [round(size * share) for size, share in gpus]
    free = sum(advertised(node(pool(*sizes), *units))) - sum(units)
    fits = any(size - used >= request for size, used in zip(sizes, units, strict=True))
    assert (free >= request) == fits


def test_metrics_count_what_is_withheld() -> None:
    metrics = Recorder()
    broken = (Fault(Code.XID, "XID 79", gpu="GPU-2"),)
    MetricsReader(metrics).read(Snapshot(), node(pool(15, 15, 8), 9, 0, 1, faults=broken))
    assert metrics.counts[RESOURCE] == DeviceCounts(
        healthy=24, unhealthy=8, withheld=6, in_use=10, free={"GPU-0": 6, "GPU-1": 15}
    )
