"""Processes, containers and devices -> who uses how much of what was granted."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.device import whole
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule, SharingStrategy
from gpuslice.watchdog.attribution import (
    Attribution,
    Container,
    GpuProcess,
    ProcessUsage,
    Usage,
    attribute,
    granted,
    watched_gpus,
)
from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.container_names import ContainerName
from gpuslice.watchdog.process_files import ContainedProcess, ProcessId
from tests.unit.slicing.nodes import gpu, mig_gpu, part

GIB = 1 << 30
A, B, C = (gpu(index) for index in range(3))
MEMORY = "aliyun.com/gpu-mem"
_pool, _ = memory_pool([A, B], MemoryRule())
assert _pool is not None
UNITS: Pool = _pool
WHOLE = Pool("nvidia.com/gpu", (part(whole(C)),))
SLICED = Pool("nvidia.com/gpu.shared", (part(whole(A), 4),), SharingStrategy.TIME_SLICING)
LIMITED = Pool("nvidia.com/gpu.mps", (part(whole(B), 4),), SharingStrategy.MPS)
POOLS = (UNITS, WHOLE)

MAIN = ContainerName("ns", "pod", "main")
SIDE = ContainerName("ns", "pod", "side")
MAIN_ID, SIDE_ID = ContainerId("uid", "a" * 64), ContainerId("uid", "b" * 64)
NAMES = {MAIN_ID: MAIN, SIDE_ID: SIDE}


def units(gpu_index: int, count: int) -> list[str]:
    return list(UNITS.parts[gpu_index].ids)[:count]


def contained(**pids: ContainerId) -> dict[int, ContainedProcess]:
    """p12=MAIN_ID: process 12 is in that container. Processes start in the order of their pids."""
    numbers = {int(name[1:]): container for name, container in pids.items()}
    return {pid: ContainedProcess(ProcessId(pid, pid), one) for pid, one in numbers.items()}


def used(pid: int, gib: float | None, *, on: str = A.uuid) -> GpuProcess:
    return GpuProcess(on, pid, None if gib is None else int(gib * GIB))


def test_processes_of_a_container_are_summed_and_compared_with_its_grant() -> None:
    found = attribute(
        [used(12, 2), used(11, 1.5), used(13, 4)],
        contained(p11=MAIN_ID, p12=MAIN_ID, p13=SIDE_ID),
        NAMES,
        {MAIN: {MEMORY: units(0, 2)}, SIDE: {MEMORY: units(0, 5)}},
        POOLS,
    )
    main, side = found.usages
    assert main == Usage(
        Container(MAIN, MAIN_ID),
        A.uuid,
        2 * GIB,
        (
            ProcessUsage(ProcessId(11, 11), int(1.5 * GIB)),
            ProcessUsage(ProcessId(12, 12), 2 * GIB),
        ),
    )
    assert main.used_bytes == int(3.5 * GIB)
    assert (side.used_bytes, side.granted_bytes) == (4 * GIB, 5 * GIB)
    assert found.unattributed == 0


def test_a_gpu_that_was_not_granted_counts_in_full() -> None:
    """Through MPS, a process reaches every GPU of the daemon."""
    [usage] = attribute(
        [used(11, 3, on=B.uuid)],
        contained(p11=MAIN_ID),
        NAMES,
        {MAIN: {MEMORY: units(0, 2)}},
        POOLS,
    ).usages
    assert (usage.gpu, usage.used_bytes, usage.granted_bytes) == (B.uuid, 3 * GIB, 0)


def test_devices_of_another_plugin_may_be_any_gpu() -> None:
    devices = {MAIN: {MEMORY: units(0, 2), "example.com/gpu": ["x"]}}
    found = attribute(
        [used(11, 3, on=B.uuid), used(11, 3)], contained(p11=MAIN_ID), NAMES, devices, POOLS
    )
    assert [usage.gpu for usage in found.usages] == [A.uuid]


def test_a_container_without_a_limited_share_is_not_watched() -> None:
    for devices in ({}, {"nvidia.com/gpu": [C.uuid]}, {"example.com/nic": ["x"]}):
        found = attribute([used(11, 30)], contained(p11=MAIN_ID), NAMES, {MAIN: devices}, POOLS)
        assert found == Attribution()


def test_a_gpu_that_is_also_held_without_a_limit_has_none() -> None:
    ids = [next(iter(SLICED.parts[0].ids))]
    grant = granted({MEMORY: units(0, 1), SLICED.resource: ids}, (UNITS, SLICED))
    assert grant.limit_bytes(A.uuid) is None
    assert grant.limit_bytes(B.uuid) == 0


def test_shares_of_several_resources_add_up() -> None:
    ids = list(LIMITED.parts[0].ids)[:2]
    grant = granted({MEMORY: units(1, 3), LIMITED.resource: ids}, (UNITS, LIMITED))
    share = LIMITED.parts[0].share.memory_mib << 20
    assert grant.limit_bytes(B.uuid) == 3 * GIB + 2 * share


def test_what_is_not_certain_is_not_attributed() -> None:
    devices = {MAIN: {MEMORY: units(0, 1)}}
    processes = [used(pid, 9) for pid in (11, 12, 13, 14)]
    inside = contained(p11=MAIN_ID, p12=SIDE_ID, p13=ContainerId("uid", "c" * 64))
    found = attribute(processes, inside, NAMES, devices, POOLS)
    # 12: the kubelet does not list it; 13: it has no name; 14: it is in no container.
    assert [p.process.pid for usage in found.usages for p in usage.processes] == [11]
    assert found.unattributed == 3


def test_two_containers_of_one_name_are_not_certain() -> None:
    twin = ContainerId("uid", "c" * 64)
    found = attribute(
        [used(11, 9), used(12, 9)],
        contained(p11=MAIN_ID, p12=twin),
        {MAIN_ID: MAIN, twin: MAIN},
        {MAIN: {MEMORY: units(0, 1)}},
        POOLS,
    )
    assert found == Attribution((), 2)


def test_memory_that_the_driver_does_not_know_is_no_violation() -> None:
    found = attribute(
        [used(11, None), used(12, 9)],
        contained(p11=MAIN_ID, p12=MAIN_ID),
        NAMES,
        {MAIN: {MEMORY: units(0, 1)}},
        POOLS,
    )
    assert found.usages == ()


def test_only_nodes_with_limited_shares_are_watched() -> None:
    assert watched_gpus((WHOLE, SLICED)) == frozenset()
    assert watched_gpus((UNITS, WHOLE)) == {A.uuid, B.uuid}
    assert watched_gpus((LIMITED,)) == {B.uuid}
    mig = Pool("x/y", (part(whole(mig_gpu(5)), 2),), SharingStrategy.MPS)
    assert watched_gpus((mig,)) == frozenset()


@given(
    st.lists(
        st.builds(
            GpuProcess,
            st.sampled_from([A.uuid, B.uuid, C.uuid, "GPU-x"]),
            st.integers(0, 20),
            st.one_of(st.none(), st.integers(0, 50 * GIB)),
        )
    ),
    st.dictionaries(st.integers(0, 20), st.sampled_from([MAIN_ID, SIDE_ID, ContainerId("u", "d")])),
    st.dictionaries(st.sampled_from([MAIN_ID, SIDE_ID]), st.sampled_from([MAIN, SIDE])),
    st.dictionaries(
        st.sampled_from([MAIN, SIDE]),
        st.dictionaries(
            st.sampled_from([MEMORY, "nvidia.com/gpu", "x/y"]),
            st.lists(st.sampled_from([*units(0, 3), *units(1, 3), C.uuid, "?"])),
        ),
    ),
)
def test_every_process_that_counts_is_in_the_container_that_holds_the_grant(
    processes: list[GpuProcess],
    cgroups: dict[int, ContainerId],
    names: dict[ContainerId, ContainerName],
    devices: Mapping[ContainerName, Mapping[str, list[str]]],
) -> None:
    inside = {pid: ContainedProcess(ProcessId(pid, pid), one) for pid, one in cgroups.items()}
    for usage in attribute(processes, inside, names, devices, POOLS).usages:
        assert usage.container.name in devices
        assert names[usage.container.id] == usage.container.name
        assert usage.granted_bytes % GIB == 0
        for one in usage.processes:
            assert cgroups[one.process.pid] == usage.container.id
            assert GpuProcess(usage.gpu, one.process.pid, one.used_bytes) in processes
