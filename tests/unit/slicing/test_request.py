import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.catalogue import DeviceOffer, Offered
from gpuslice.slicing.device import whole
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits, ThreadShare
from gpuslice.slicing.request import Requested, devices_of, mps_limits
from gpuslice.slicing.rules import SharingStrategy

from .nodes import gpu

A, B = whole(gpu(0)), whole(gpu(1))
WHOLE = DeviceOffer("nvidia.com/gpu", (Offered(A), Offered(B)))
SLICED = DeviceOffer(
    "nvidia.com/gpu.shared", (Offered(A, 6), Offered(B, 6)), SharingStrategy.TIME_SLICING
)


def mps(*replicas: int, fail: bool) -> DeviceOffer:
    devices = tuple(Offered(d, n) for d, n in zip((A, B), replicas, strict=True))
    return DeviceOffer("nvidia.com/gpu", devices, SharingStrategy.MPS, fail)


def test_a_whole_gpu_is_named_by_its_uuid() -> None:
    assert devices_of(WHOLE, ["GPU-1", "GPU-0"]) == (Requested(B, 0, 0), Requested(A, 0, 0))


def test_replicas_of_a_gpu_are_that_gpu_once() -> None:
    assert devices_of(SLICED, ["GPU-0::3", "GPU-0::5"]) == (Requested(A, 2, 6),)


def test_gpus_come_in_the_order_of_the_request() -> None:
    ids = ["GPU-1::0", "GPU-0::1", "GPU-1::2"]
    assert devices_of(SLICED, ids) == (Requested(B, 2, 6), Requested(A, 1, 6))


@pytest.mark.parametrize(
    ("offer", "ids", "because"),
    [
        (WHOLE, [], "invalid request: it names no devices"),
        (WHOLE, ["GPU-9"], "invalid request: unknown device: GPU-9 (it is gone"),
        (WHOLE, ["GPU-0::0"], "unknown device: GPU-0::0 "),
        (SLICED, ["GPU-0"], "unknown device: GPU-0 "),
        (SLICED, ["GPU-0::6"], "unknown device: GPU-0::6 "),
        (SLICED, ["GPU-0::01"], "unknown device: GPU-0::01 "),
        (WHOLE, ["x\n" * 900], "unknown device: x\\nx\\n"),
        (WHOLE, ["GPU-0", "GPU-0"], "invalid request: device GPU-0 is named more than once"),
        (
            mps(2, 2, fail=True),
            ["GPU-0::0", "GPU-0::1"],
            "invalid request: maximum request size for shared resources is 1; found 2. ",
        ),
        (
            mps(2, 2, fail=False),
            ["GPU-1::0", "GPU-0::1"],
            "invalid request: no single GPU has 2 replicas free, and those of GPUs 1, 0 cannot",
        ),
        (mps(2, 0, fail=False), ["GPU-0::0", "GPU-1"], "invalid request: no single GPU"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(
    offer: DeviceOffer, ids: list[str], because: str
) -> None:
    with pytest.raises(GrantRefused) as refused:
        devices_of(offer, ids)
    assert because in str(refused.value)
    assert len(str(refused.value)) < 400


def test_the_limit_of_one_concerns_shared_devices_only() -> None:
    assert len(devices_of(WHOLE, ["GPU-0", "GPU-1"])) == 2
    only_whole = mps(0, 0, fail=True)
    assert len(devices_of(only_whole, ["GPU-0", "GPU-1"])) == 2


def test_replicas_of_one_gpu_are_joined_where_that_is_allowed() -> None:
    (requested,) = devices_of(mps(4, 4, fail=False), ["GPU-1::0", "GPU-1::2", "GPU-1::3"])
    assert mps_limits(requested) == Limits(3 * 10240, 75)


@pytest.mark.parametrize(
    ("asked", "replicas", "memory_mib", "percent"),
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
    asked: int, replicas: int, memory_mib: int, percent: int
) -> None:
    requested = Requested(A, asked, replicas)
    assert mps_limits(requested) == Limits(memory_mib, percent)
    assert mps_limits(requested, ThreadShare.NONE) == Limits(memory_mib, None)


@pytest.mark.parametrize(
    ("asked", "replicas", "memory_mib"),
    [(1, 4, 10112), (3, 4, 30336), (4, 4, 40448), (1, 1, 40448)],
)
def test_the_reserve_is_taken_before_memory_is_split(
    asked: int, replicas: int, memory_mib: int
) -> None:
    kept = DeviceOffer("x", (Offered(A, replicas, 512),), SharingStrategy.MPS)
    [requested] = devices_of(kept, [f"GPU-0::{n}" for n in range(asked)])
    assert mps_limits(requested) == Limits(memory_mib, 100 * asked // replicas)


def test_an_unshared_gpu_is_limited_to_itself() -> None:
    assert mps_limits(Requested(A, 0, 0)) == Limits(40960, 100)


@given(st.integers(1, 48), st.integers(0, 40000), st.data())
def test_containers_that_share_a_gpu_never_get_more_than_it_has(
    replicas: int, reserve_mib: int, data: st.DataObject
) -> None:
    left, memory_mib, percent = replicas, 0, 0
    while left:
        asked = data.draw(st.integers(1, left))
        limits = mps_limits(Requested(A, asked, replicas, reserve_mib))
        memory_mib += limits.memory_mib
        percent += limits.threads_percent or 0
        left -= asked
    assert memory_mib <= A.memory_mib - reserve_mib
    assert percent <= 100
