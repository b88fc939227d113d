import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kubelet.wire import UNHEALTHY, device_list
from gpuslice.slicing.errors import TooManyDevices
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.ids import IdStyle, split_unit_id
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.offer import Offer, cut, message_bytes
from gpuslice.slicing.units import MemoryUnit

from .strategies import nodes, offers

GIB = MemoryUnit(1024)
MIB = MemoryUnit(1)
UUID = "GPU-3f7f1f4c-2a7e-4b0e-9c0e-5d1c3f0a9b01"


def gpu(minor: int, memory_mib: int, uuid: str = "") -> Gpu:
    return Gpu(uuid or f"{UUID[:-2]}{minor:02}", minor, minor, "Simulated", memory_mib)


def test_ids_are_those_of_gpushare() -> None:
    offer = cut([Gpu("GPU-aa", 0, 0, "Simulated", 3 * 1024)], GIB)
    assert list(offer.owners) == ["GPU-aa-_-0", "GPU-aa-_-1", "GPU-aa-_-2"]


def test_every_gpu_is_cut_by_its_own_size() -> None:
    offer = cut([gpu(0, 16276), gpu(1, 81920), gpu(3, 1000)], GIB)
    assert [(s.gpu.minor, s.units) for s in offer.gpus] == [(0, 15), (1, 80)]


def test_the_reserve_is_kept_back_on_every_gpu() -> None:
    offer = cut([gpu(0, 15360), gpu(1, 40960)], GIB, reserve_mib=512)
    assert [s.units for s in offer.gpus] == [14, 39]


def test_small_units_get_short_ids_named_by_minor_number() -> None:
    offer = cut([gpu(5, 81920)], MIB)
    assert offer.gpus[0].style is IdStyle.SHORT
    assert next(offer.gpus[0].ids()) == "5-0"


def test_long_ids_are_kept_as_long_as_the_list_fits() -> None:
    assert cut([gpu(0, 60_000)], MIB).gpus[0].style is IdStyle.LONG
    assert cut([gpu(0, 70_000)], MIB).gpus[0].style is IdStyle.SHORT


def test_a_list_that_cannot_fit_is_refused_with_a_unit_that_does() -> None:
    gpus = [gpu(n, 81920) for n in range(8)]
    with pytest.raises(TooManyDevices, match="memory unit MiB cuts this node into 655360") as error:
        cut(gpus, MIB)
    remedy = MemoryUnit.parse(str(error.value).rpartition("for example ")[2])
    assert remedy == MemoryUnit(4)
    assert message_bytes(cut(gpus, remedy)) <= MESSAGE_LIMIT_BYTES


@pytest.mark.parametrize(
    ("devices", "healthy_bytes"),
    # Sizes of lists that users saw the kubelet reject, with all devices healthy.
    [((81920,), 4_986_010), ((22919,) * 4, 5_547_796)],
)
def test_the_message_size_agrees_with_lists_seen_in_the_field(
    devices: tuple[int, ...], healthy_bytes: int
) -> None:
    from gpuslice.slicing.offer import SlicedGpu

    sliced = tuple(SlicedGpu(gpu(n, count), count, IdStyle.LONG) for n, count in enumerate(devices))
    worst = message_bytes(Offer(MIB, sliced))
    assert worst - sum(devices) * len("un") == healthy_bytes


@given(offers())
def test_the_message_size_is_exact(offer: Offer) -> None:
    encoded = b"".join(device_list(sliced.ids(), UNHEALTHY) for sliced in offer.gpus)
    assert message_bytes(offer) == len(encoded)


@given(nodes(), st.sampled_from([16, 100, 256, 1024, 5000]))
def test_ids_round_trip_and_are_unique(gpus: list[Gpu], unit_mib: int) -> None:
    try:
        offer = cut(gpus, MemoryUnit(unit_mib))
    except TooManyDevices:
        return
    assert len(offer.owners) == offer.units
    for sliced in offer.gpus:
        for number, device_id in enumerate(sliced.ids()):
            owner = sliced.gpu.uuid if sliced.style is IdStyle.LONG else str(sliced.gpu.minor)
            assert split_unit_id(device_id) == (owner, number)


@given(nodes(), st.integers(256, 5000), st.integers(0, 4096))
def test_no_gpu_is_promised_more_memory_than_it_has(
    gpus: list[Gpu], unit_mib: int, reserve_mib: int
) -> None:
    for sliced in cut(gpus, MemoryUnit(unit_mib), reserve_mib=reserve_mib).gpus:
        assert sliced.units * unit_mib <= sliced.gpu.memory_mib - reserve_mib


@given(nodes(), st.randoms())
def test_the_order_of_enumeration_does_not_matter(gpus: list[Gpu], random: object) -> None:
    shuffled = list(gpus)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert list(cut(gpus, GIB).owners) == list(cut(shuffled, GIB).owners)
