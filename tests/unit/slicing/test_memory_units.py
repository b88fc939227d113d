from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.kubelet.wire import DeviceGroup, device_list
from gpuslice.slicing.device import whole
from gpuslice.slicing.device_ids import unit_ids
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Part, Pool, Share
from gpuslice.slicing.rules import IdForm, MemoryRule, SharingStrategy
from gpuslice.slicing.units import MemoryUnit

from .strategies import memory_pools, nodes

GIB = MemoryUnit(1024)
MIB = MemoryUnit(1)
UUID = "GPU-3f7f1f4c-2a7e-4b0e-9c0e-5d1c3f0a9b01"


def gpu(minor: int, memory_mib: int, capability: tuple[int, int] = (7, 5)) -> Gpu:
    return Gpu(f"{UUID[:-2]}{minor:02}", minor, minor, "Simulated", memory_mib, capability)


def sliced(gpus: list[Gpu], unit: MemoryUnit = GIB, reserve_mib: int = 0) -> Pool:
    pool, _ = memory_pool(gpus, MemoryRule(unit=unit, reserve_mib=reserve_mib))
    return pool or Pool("empty", ())


def test_ids_are_those_of_gpushare() -> None:
    pool = sliced([Gpu("GPU-aa", 0, 0, "Simulated", 3 * 1024)])
    assert list(pool.owners) == ["GPU-aa-_-0", "GPU-aa-_-1", "GPU-aa-_-2"]
    assert pool.sharing is SharingStrategy.MEMORY


def test_every_gpu_is_sliced_by_its_own_size() -> None:
    pool = sliced([gpu(0, 16276), gpu(1, 81920), gpu(3, 1000)])
    assert [(part.device.minor, part.count) for part in pool.parts] == [(0, 15), (1, 80)]


def test_the_reserve_is_subtracted_on_every_gpu() -> None:
    pool = sliced([gpu(0, 15360), gpu(1, 40960)], reserve_mib=512)
    assert [part.count for part in pool.parts] == [14, 39]


def test_small_units_get_short_ids_with_the_minor_number() -> None:
    assert next(iter(sliced([gpu(5, 81920)], MIB).owners)) == "5-0"


def form_of(pool: Pool) -> list[str]:
    return ["long" if part.ids.stem.startswith("GPU-") else "short" for part in pool.parts]


def test_ids_are_long_if_sixteen_such_gpus_could_have_long_ones() -> None:
    assert form_of(sliced([gpu(0, 3_600)], MIB)) == ["long"]
    assert form_of(sliced([gpu(0, 3_900)], MIB)) == ["short"]
    sixteen = sliced([replace(gpu(n, 3_600), numa_node=n % 2) for n in range(16)], MIB)
    assert form_of(sixteen) == ["long"] * 16
    assert sixteen.list_bytes() <= MESSAGE_LIMIT_BYTES


def test_another_gpu_never_changes_the_ids_of_a_gpu() -> None:
    """Five T4 in MiB once had other ids than four, so that allocated memory was given twice."""
    four = sliced([gpu(n, 15360) for n in range(4)], MIB)
    five = sliced([gpu(n, 15360) for n in range(5)], MIB)
    assert five.parts[:4] == four.parts
    mixed = sliced([gpu(0, 3_000), gpu(1, 81_920)], MIB)
    assert form_of(mixed) == ["long", "short"]


@pytest.mark.parametrize("form", [IdForm.LONG, IdForm.SHORT])
def test_the_form_of_ids_can_be_set(form: IdForm) -> None:
    for memory_mib in (3_000, 30_000):
        pool, _ = memory_pool([gpu(0, memory_mib)], MemoryRule(unit=MIB, ids=form))
        assert pool is not None
        assert form_of(pool) == [form.value]


def test_units_have_the_numa_node_of_their_gpu() -> None:
    pool = sliced([replace(gpu(0, 15360), numa_node=1), gpu(1, 15360)])
    assert [part.numa_node for part in pool.parts] == [1, None]


def test_numa_nodes_are_omitted_if_the_list_has_no_room_for_them() -> None:
    gpus = [replace(gpu(minor, 46_068), numa_node=minor // 2) for minor in range(4)]
    pool, notices = memory_pool(gpus, MemoryRule(unit=MIB))
    assert pool is not None
    assert {part.numa_node for part in pool.parts} == {None}
    assert pool.list_bytes() <= MESSAGE_LIMIT_BYTES
    assert [notice.code for notice in notices] == [Code.NUMA_NODES_OMITTED]
    pool, notices = memory_pool(gpus, MemoryRule(unit=MemoryUnit(2)))
    assert pool is not None
    assert {part.numa_node for part in pool.parts} == {0, 1}
    assert notices == []


def test_a_list_that_is_too_long_is_refused_with_a_unit_that_fits() -> None:
    gpus = [gpu(n, 81920) for n in range(8)]
    with pytest.raises(SlicingError, match="memory unit MiB makes 655360 devices") as error:
        sliced(gpus, MIB)
    assert error.value.code is Code.TOO_MANY_DEVICES
    remedy = MemoryUnit.parse(str(error.value).rpartition("for example ")[2])
    assert remedy == MemoryUnit(4)
    assert sliced(gpus, remedy).list_bytes() <= MESSAGE_LIMIT_BYTES


@pytest.mark.parametrize(
    ("rule", "small"),
    [
        (MemoryRule(limited=True), gpu(1, 16384, (6, 1))),
        (MemoryRule(limited=True), Gpu("GPU-m", 1, 1, "A100", 40960, (8, 0), mig_enabled=True)),
        (MemoryRule(), gpu(1, 1000)),
        (MemoryRule(reserve_mib=512), gpu(1, 1500)),
    ],
    ids=["before Volta", "MIG", "small", "reserve"],
)
def test_a_gpu_that_cannot_be_sliced_is_skipped_with_a_notice(rule: MemoryRule, small: Gpu) -> None:
    pool, notices = memory_pool([gpu(0, 16384), small], rule)
    assert pool is not None
    assert [part.device.index for part in pool.parts] == ["0"]
    assert [notice.code for notice in notices] == [Code.GPU_SKIPPED]
    assert small.uuid in notices[0].message
    assert memory_pool([small], rule)[0] is None


def test_units_are_limited_by_a_daemon_only_if_mps_is_on() -> None:
    for limited, daemons in ((True, {"aliyun.com/gpu-mem"}), (False, set())):
        pool, _ = memory_pool([gpu(0, 16384)], MemoryRule(limited=limited))
        assert pool is not None
        assert pool.daemons == daemons


@pytest.mark.parametrize(
    ("devices", "healthy_bytes"),
    # Sizes of lists that users saw the kubelet reject, with all devices healthy.
    [((81920,), 4_986_010), ((22919,) * 4, 5_547_796)],
)
def test_the_list_size_agrees_with_lists_seen_in_the_field(
    devices: tuple[int, ...], healthy_bytes: int
) -> None:
    cards = [gpu(n, count) for n, count in enumerate(devices)]
    parts = (Part(whole(c), unit_ids(c.uuid, c.memory_mib), Share(1)) for c in cards)
    worst = Pool("aliyun.com/gpu-mem", tuple(parts)).list_bytes()
    assert worst - sum(devices) * len("un") == healthy_bytes


@given(memory_pools())
def test_the_list_size_is_exact(pool: Pool) -> None:
    encoded = b"".join(device_list(DeviceGroup(part.ids, healthy=False)) for part in pool.parts)
    assert pool.list_bytes() == len(encoded)


@given(nodes(), st.sampled_from([16, 100, 256, 1024, 5000]))
def test_ids_are_unique_and_lead_to_their_gpu(gpus: list[Gpu], unit_mib: int) -> None:
    try:
        pool = sliced(gpus, MemoryUnit(unit_mib))
    except SlicingError:
        return
    assert len(pool.owners) == pool.count
    for position, part in enumerate(pool.parts):
        assert all(pool.owners[device_id] == position for device_id in part.ids)
        prefixes = {device_id.rpartition("-")[0].removesuffix("-_") for device_id in part.ids}
        assert prefixes in ({part.device.uuid}, {str(part.device.minor)})


@given(nodes(), st.integers(256, 5000), st.integers(0, 4096))
def test_no_gpu_is_promised_more_memory_than_it_has(
    gpus: list[Gpu], unit_mib: int, reserve_mib: int
) -> None:
    for part in sliced(gpus, MemoryUnit(unit_mib), reserve_mib).parts:
        assert part.count * unit_mib <= part.device.memory_mib - reserve_mib


@given(nodes(), st.randoms())
def test_the_order_of_enumeration_does_not_matter(gpus: list[Gpu], random: object) -> None:
    shuffled = list(gpus)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert list(sliced(gpus).owners) == list(sliced(shuffled).owners)
