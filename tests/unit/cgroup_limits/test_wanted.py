"""Devices of pods -> limits of their cgroups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cgroup_limits.wanted import (
    PodDevices,
    container_limits,
    holder_of,
    limits_of,
    pods_of,
)
from gpuslice.slicing.device import mig_devices, whole
from gpuslice.slicing.holders import Holder
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule, SharingStrategy
from tests.unit.slicing.nodes import gpu, mig_gpu, part

GIB = 1 << 30
A, B, C = (gpu(index) for index in range(3))
MEMORY = "aliyun.com/gpu-mem"
_pool, _ = memory_pool([A, B], MemoryRule())
assert _pool is not None
UNITS: Pool = _pool
WHOLE = Pool("nvidia.com/gpu", (part(whole(C)),))
POOLS = (UNITS, WHOLE)


def units(gpu_index: int, first: int, count: int) -> frozenset[str]:
    return frozenset(list(UNITS.parts[gpu_index].ids)[first : first + count])


def pod(**containers: frozenset[str]) -> PodDevices:
    return PodDevices("uid", {name: {MEMORY: ids} for name, ids in containers.items()})


def test_a_pod_may_use_what_its_containers_were_granted_together() -> None:
    both = pod(one=units(0, 0, 2), two=units(0, 2, 3), three=units(1, 0, 1))
    assert limits_of(both.together, POOLS) == {A.uuid: 5 * GIB, B.uuid: GIB}


def test_init_containers_leave_their_devices_to_the_others() -> None:
    together = pod(init=units(0, 0, 4), main=units(0, 0, 2)).together
    assert limits_of(together, POOLS) == {A.uuid: 4 * GIB}


def test_a_gpu_that_is_held_as_a_whole_and_mig_devices_have_no_limit() -> None:
    devices = {MEMORY: units(0, 0, 1), WHOLE.resource: frozenset(WHOLE.parts[0].ids)}
    assert limits_of(devices, POOLS) == {A.uuid: GIB}
    mig = Pool(
        "mig", (part(mig_devices(mig_gpu(0, ("1g.5gb", 4864, 1)))[0], 2),), SharingStrategy.MPS
    )
    assert limits_of({"mig": frozenset(mig.parts[0].ids)}, [mig]) == {}


def test_unknown_devices_have_no_limit() -> None:
    assert limits_of({MEMORY: frozenset({"gone"}), "other": frozenset({"x"})}, POOLS) == {}


def test_containers_of_equal_limits_need_no_names() -> None:
    one = pod(init=units(0, 0, 2), main=units(0, 0, 2))
    found = dict(container_limits(one, {}, ["a", "b"], POOLS))
    assert found == {"a": {A.uuid: 2 * GIB}, "b": {A.uuid: 2 * GIB}}


def test_containers_of_different_limits_need_names() -> None:
    two = pod(one=units(0, 0, 2), two=units(0, 2, 3))
    assert dict(container_limits(two, {}, ["a", "b"], POOLS)) == {}
    names = {"a": "two", "b": "without devices"}
    assert dict(container_limits(two, names, ["a", "b"], POOLS)) == {"a": {A.uuid: 3 * GIB}}


def test_the_pod_that_starts_must_be_certain() -> None:
    ids = units(0, 0, 2)
    first, second = (
        pods_of([(MEMORY, Holder("u1", "main", ids))]),
        pods_of([(MEMORY, Holder("u1", "main", ids)), (MEMORY, Holder("u2", "main", ids))]),
    )
    found = holder_of(first, MEMORY, ids)
    assert found is not None
    assert found.uid == "u1"
    assert holder_of(second, MEMORY, ids) is None
    assert holder_of(first, "other", ids) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=5
    )
)
def test_no_container_has_more_than_its_pod(chosen: list[tuple[int, int, int]]) -> None:
    some = pod(**{f"c{n}": units(*one) for n, one in enumerate(chosen)})
    together = limits_of(some.together, POOLS)
    names = {f"id-{name}": name for name in some.containers}
    for _, limits in container_limits(some, names, names, POOLS):
        for uuid, limit in limits.items():
            assert 0 < limit <= together[uuid]
