"""Device ids -> what a container gets, and the limits that come with it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.slicing.device import whole
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant, GrantedPart, grant
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool, Share
from gpuslice.slicing.rules import MemoryRule, SharingStrategy
from gpuslice.slicing.threads import Threads, ThreadStrategy

from .nodes import gpu, part
from .strategies import memory_pools

A, B = whole(gpu(0)), whole(gpu(1))
WHOLE = Pool("nvidia.com/gpu", (part(A), part(B)))
SLICED = Pool("nvidia.com/gpu.shared", (part(A, 6), part(B, 6)), SharingStrategy.TIME_SLICING)
CARDS = [Gpu("GPU-aa", 0, 0, "Simulated", 15360), Gpu("GPU-bb", 1, 3, "Simulated", 40960)]


def mps(*replicas: int, fail: bool) -> Pool:
    parts = tuple(part(d, n) for d, n in zip((A, B), replicas, strict=True))
    return Pool("nvidia.com/gpu", parts, SharingStrategy.MPS, one_share_per_container=fail)


def memory(threads: ThreadStrategy = ThreadStrategy.PROPORTIONAL) -> Pool:
    pool, _ = memory_pool(CARDS, MemoryRule(threads=threads))
    assert pool is not None
    return pool


def counts(granted: Grant) -> list[tuple[str, int, int]]:
    """Device, how many of its shares, of how many."""
    return [(one.part.device.uuid, one.count, one.part.count) for one in granted.parts]


# Which devices


def test_a_whole_gpu_is_named_by_its_uuid() -> None:
    assert counts(grant(WHOLE, ["GPU-1", "GPU-0"])) == [("GPU-1", 1, 1), ("GPU-0", 1, 1)]


def test_several_replicas_of_a_gpu_are_that_gpu_once() -> None:
    assert counts(grant(SLICED, ["GPU-0::3", "GPU-0::5"])) == [("GPU-0", 2, 6)]


def test_gpus_come_in_the_order_of_the_request() -> None:
    ids = ["GPU-1::0", "GPU-0::1", "GPU-1::2"]
    assert counts(grant(SLICED, ids)) == [("GPU-1", 2, 6), ("GPU-0", 1, 6)]


def test_memory_units_name_their_gpu() -> None:
    granted = grant(memory(), ["GPU-bb-_-4", "GPU-bb-_-39", "GPU-bb-_-0"])
    assert counts(granted) == [("GPU-bb", 3, 40)]


@pytest.mark.parametrize(
    ("pool", "ids", "code"),
    [
        (WHOLE, [], Code.EMPTY_REQUEST),
        (WHOLE, ["GPU-9"], Code.UNKNOWN_DEVICE),
        (WHOLE, ["GPU-0::0"], Code.UNKNOWN_DEVICE),
        (WHOLE, ["x\n" * 900], Code.UNKNOWN_DEVICE),
        (WHOLE, ["GPU-0", "GPU-0"], Code.DUPLICATE_DEVICE),
        (SLICED, ["GPU-0"], Code.UNKNOWN_DEVICE),
        (SLICED, ["GPU-0::6"], Code.UNKNOWN_DEVICE),
        (SLICED, ["GPU-0::01"], Code.UNKNOWN_DEVICE),
        (mps(2, 2, fail=True), ["GPU-0::0", "GPU-0::1"], Code.REQUEST_TOO_LARGE),
        (mps(2, 2, fail=False), ["GPU-1::0", "GPU-0::1"], Code.SPANS_GPUS),
        (mps(2, 0, fail=False), ["GPU-0::0", "GPU-1"], Code.SPANS_GPUS),
        (memory(), [], Code.EMPTY_REQUEST),
        (memory(), ["GPU-aa-_-1", "GPU-aa-_-1"], Code.DUPLICATE_DEVICE),
        (memory(), ["GPU-aa-_-15"], Code.UNKNOWN_DEVICE),
        (memory(), ["GPU-cc-_-0"], Code.UNKNOWN_DEVICE),
        (memory(), ["0-3"], Code.UNKNOWN_DEVICE),
        (memory(), ["GPU-aa"], Code.UNKNOWN_DEVICE),
        (memory(), ["GPU-aa-_-x"], Code.UNKNOWN_DEVICE),
        (memory(), ["GPU-aa-_--1"], Code.UNKNOWN_DEVICE),
        (memory(), [""], Code.UNKNOWN_DEVICE),
        (memory(), ["GPU-aa-_-0", "GPU-bb-_-0"], Code.SPANS_GPUS),
    ],
)
def test_requests_that_cannot_be_granted_are_refused(
    pool: Pool, ids: list[str], code: Code
) -> None:
    with pytest.raises(GrantRefused) as refused:
        grant(pool, ids)
    assert refused.value.code is code
    assert str(refused.value).startswith("invalid request: ")
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


def test_a_request_that_spans_gpus_is_refused_with_the_amounts() -> None:
    with pytest.raises(GrantRefused) as refused:
        grant(memory(), ["GPU-bb-_-0", "GPU-aa-_-0", "GPU-bb-_-1"])
    assert str(refused.value) == (
        "invalid request: no single GPU of this node has 3 GiB free: the request would be spread "
        "(1 GiB on GPU 0, 2 GiB on GPU 1), and a container gets its share from one GPU. "
        "Request less, or wait until another pod ends"
    )
    with pytest.raises(GrantRefused, match=r"1 replicas on GPU 0, 1 replicas on GPU 1"):
        grant(mps(2, 2, fail=False), ["GPU-1::0", "GPU-0::1"])


def test_an_unknown_device_is_named_as_nvidias_plugin_names_it() -> None:
    with pytest.raises(GrantRefused, match=r"invalid request: unknown device: GPU-9\. "):
        grant(WHOLE, ["GPU-9"])


def test_the_limit_of_one_concerns_shared_devices_only() -> None:
    assert len(grant(WHOLE, ["GPU-0", "GPU-1"]).parts) == 2
    assert len(grant(mps(0, 0, fail=True), ["GPU-0", "GPU-1"]).parts) == 2


# Limits


def test_replicas_of_one_gpu_are_joined_where_that_is_allowed() -> None:
    granted = grant(mps(4, 4, fail=False), ["GPU-1::0", "GPU-1::2", "GPU-1::3"])
    assert [one.limits for one in granted.parts] == [Limits(3 * 10240, 75)]


@pytest.mark.parametrize(
    ("count", "replicas", "memory_mib", "percent"),
    [
        # What NVIDIA's control daemon is told for a card of 40,960 MiB in 10 replicas.
        (1, 10, 4096, 10),
        (1, 3, 13653, 33),
        (2, 3, 27306, 66),
        (3, 3, 40959, 100),
        (1, 1, 40960, 100),
        (1, 48, 853, 2),
    ],
)
def test_limits_grow_with_the_number_of_replicas(
    count: int, replicas: int, memory_mib: int, percent: int
) -> None:
    assert GrantedPart(part(A, replicas), count).limits == Limits(memory_mib, percent)


@pytest.mark.parametrize(
    ("count", "replicas", "memory_mib"),
    [(1, 4, 10112), (3, 4, 30336), (4, 4, 40448), (1, 1, 40448)],
)
def test_the_reserve_is_subtracted_before_memory_is_divided(
    count: int, replicas: int, memory_mib: int
) -> None:
    limits = GrantedPart(part(A, replicas, 512), count).limits
    assert limits == Limits(memory_mib, 100 * count // replicas)


def test_an_unshared_gpu_is_limited_to_its_own_memory() -> None:
    assert GrantedPart(part(A), 1).limits == Limits(40960, None)


def test_a_slice_is_limited_to_its_memory_and_its_share_of_threads() -> None:
    ids = [f"GPU-aa-_-{n}" for n in range(6)]
    assert grant(memory(), ids).parts[0].limits == Limits(6144, 40)
    assert grant(memory(ThreadStrategy.NONE), ids).parts[0].limits == Limits(6144, None)


@pytest.mark.parametrize(
    ("units", "of", "percent"),
    [(1, 15, 6), (2, 15, 13), (3, 15, 20), (15, 15, 100), (100, 16276, 1), (1, 1, 100)],
)
def test_the_share_of_threads_follows_the_memory(units: int, of: int, percent: int) -> None:
    assert Share(1024, Threads(Fraction(100, of))).times(units) == Limits(units * 1024, percent)


@given(st.integers(1, 100_000), st.data())
def test_percentages_stay_in_what_mps_accepts(total: int, data: st.DataObject) -> None:
    limits = Share(1, Threads(Fraction(100, total))).times(data.draw(st.integers(1, total)))
    assert limits.threads_percent is not None
    assert 1 <= limits.threads_percent <= 100


@given(st.integers(1, 48), st.integers(0, 40000), st.data())
def test_containers_that_share_a_gpu_never_get_more_than_it_has(
    replicas: int, reserve_mib: int, data: st.DataObject
) -> None:
    shared = part(A, replicas, reserve_mib)
    left, memory_mib, percent = replicas, 0, 0
    while left:
        count = data.draw(st.integers(1, left))
        limits = GrantedPart(shared, count).limits
        memory_mib += limits.memory_mib
        percent += limits.threads_percent or 0
        left -= count
    assert memory_mib <= A.memory_mib - reserve_mib
    assert percent <= 100


@given(memory_pools(), st.data())
def test_the_limits_of_a_full_gpu_sum_to_no_more_than_its_memory(
    pool: Pool, data: st.DataObject
) -> None:
    for one in pool.parts:
        left, total = list(one.ids), 0
        while left:
            size = data.draw(st.integers(1, len(left)))
            taken, left = left[:size], left[size:]
            total += grant(pool, taken).parts[0].limits.memory_mib
        assert total <= one.device.memory_mib
