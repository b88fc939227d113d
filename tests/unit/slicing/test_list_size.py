import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kubelet.wire import DeviceGroup, device_list
from gpuslice.slicing.device_ids import DeviceIds
from gpuslice.slicing.list_size import device_bytes, numbered_bytes


@pytest.mark.parametrize("numa_node", [None, 0, 1, 127, 128])
def test_the_size_of_a_device_is_exact(numa_node: int | None) -> None:
    for length in (1, 40, 100, 127, 128, 200):
        encoded = device_list(DeviceGroup(DeviceIds("x" * length), False, numa_node))
        assert device_bytes(length, numa_node) == len(encoded)


@given(st.text("GPU-", max_size=150), st.integers(0, 1200), st.none() | st.integers(0, 300))
def test_the_size_of_a_list_is_exact(prefix: str, count: int, numa_node: int | None) -> None:
    encoded = device_list(DeviceGroup(DeviceIds(prefix, count), False, numa_node))
    assert numbered_bytes(len(prefix), count, numa_node) == len(encoded)
