import pytest

from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.offer import Offer, cut
from gpuslice.slicing.units import MemoryUnit

A = Gpu("GPU-aa", 0, 0, "Simulated", 15360)
B = Gpu("GPU-bb", 1, 3, "Simulated", 40960)


@pytest.fixture
def offer() -> Offer:
    return cut([A, B], MemoryUnit(1024))


def test_ids_name_their_gpu(offer: Offer) -> None:
    ids = ["GPU-bb-_-4", "GPU-bb-_-39", "GPU-bb-_-0"]
    assert grant(offer, ids) == Grant(B, units=3, gpu_units=40, unit=MemoryUnit(1024))


def test_a_set_that_spans_gpus_is_refused_in_a_sentence(offer: Offer) -> None:
    with pytest.raises(GrantRefused) as refused:
        grant(offer, ["GPU-aa-_-0", "GPU-bb-_-0", "GPU-bb-_-1"])
    assert str(refused.value) == (
        "no single GPU of this node has 3 GiB free for this pod: it would be spread "
        "(1 GiB on GPU 0, 2 GiB on GPU 3) and a slice must lie on one GPU. "
        "Ask for less, or wait until memory is freed"
    )


@pytest.mark.parametrize(
    ("ids", "because"),
    [
        ([], "names no device ids"),
        (["GPU-aa-_-1", "GPU-aa-_-1"], "'GPU-aa-_-1' is named more than once"),
        (["GPU-aa-_-15"], "'GPU-aa-_-15' is unknown: GPU 'GPU-aa' is gone or was cut differently"),
        (["GPU-cc-_-0"], "GPU 'GPU-cc' is gone or was cut differently"),
        (["0-3"], "GPU '0' is gone or was cut differently"),
        (["GPU-aa"], "'GPU-aa' is not a memory unit"),
        (["GPU-aa-_-x"], "'GPU-aa-_-x' is not a memory unit"),
        (["GPU-aa-_--1"], "'GPU-aa-_--1' is not a memory unit"),
        (["-_-1"], "'-_-1' is not a memory unit"),
        ([""], "'' is not a memory unit"),
    ],
)
def test_ids_that_make_no_slice_are_refused(offer: Offer, ids: list[str], because: str) -> None:
    with pytest.raises(GrantRefused, match=because):
        grant(offer, ids)
