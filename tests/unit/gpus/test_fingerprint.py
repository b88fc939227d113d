from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.gpus.fingerprint import Fingerprint, changes

Layout = tuple[tuple[int, str], ...] | None

HERE = {"0000:3b:00.0": "nvidia", "0000:d8:00.0": "nvidia"}
addresses = st.sampled_from(["0000:3b:00.0", "0000:d8:00.0", "0000:af:00.0"])
fingerprints = st.builds(
    Fingerprint,
    functions=st.dictionaries(addresses, st.sampled_from(["", "nvidia", "vfio-pci"])),
    mig=st.dictionaries(
        st.sampled_from(["GPU-a", "GPU-b"]),
        st.none() | st.lists(st.tuples(st.integers(0, 6), st.just("MIG-1"))).map(tuple),
    ),
    recovered=st.frozensets(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 2))),
)


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        (HERE, ()),
        ({"0000:3b:00.0": "nvidia"}, ("the GPU at 0000:d8:00.0 was removed",)),
        (HERE | {"0000:af:00.0": ""}, ("the GPU at 0000:af:00.0 was added",)),
        (
            HERE | {"0000:3b:00.0": "vfio-pci"},
            ("the GPU at 0000:3b:00.0 went from nvidia to vfio-pci",),
        ),
        (
            HERE | {"0000:3b:00.0": ""},
            ("the GPU at 0000:3b:00.0 went from nvidia to no driver",),
        ),
    ],
)
def test_hot_plug_and_changes_of_drivers_are_described(
    functions: dict[str, str], told: tuple[str, ...]
) -> None:
    assert changes(Fingerprint(HERE), Fingerprint(functions)) == told


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, None, ()),
        (None, ((0, "MIG-1"),), ("MIG of GPU-a was enabled",)),
        (((0, "MIG-1"),), None, ("MIG of GPU-a was disabled",)),
        (((0, "MIG-1"),), (), ("the MIG devices of GPU-a changed",)),
        (((0, "MIG-1"),), ((0, "MIG-2"),), ("the MIG devices of GPU-a changed",)),
    ],
)
def test_changes_of_mig_are_described(before: Layout, now: Layout, told: tuple[str, ...]) -> None:
    assert changes(Fingerprint(mig={"GPU-a": before}), Fingerprint(mig={"GPU-a": now})) == told


def test_a_device_that_answers_again_is_described_once() -> None:
    recovered = Fingerprint(recovered=frozenset({(1, None), (2, 3)}))
    assert changes(Fingerprint(), recovered) == (
        "GPU 1 answers again",
        "MIG device 2:3 answers again",
    )
    assert changes(recovered, recovered) == changes(recovered, Fingerprint()) == ()


@given(fingerprints)
def test_equal_fingerprints_have_no_changes(fingerprint: Fingerprint) -> None:
    assert changes(fingerprint, fingerprint) == ()
