import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.units import MemoryUnit, describe_mib, parse_mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [("GiB", 1024), ("MiB", 1), ("256MiB", 256), ("2GiB", 2048), ("1Gi", 1024), (" 64 MiB ", 64)],
)
def test_a_unit_is_read_as_people_write_it(text: str, mib: int) -> None:
    assert MemoryUnit.parse(text) == MemoryUnit(mib)


@pytest.mark.parametrize("text", ["", "G", "GB", "1.5GiB", "-1GiB", "GiB2", "1TiB", "twenty"])
def test_the_error_for_an_invalid_size_has_a_remedy(text: str) -> None:
    with pytest.raises(SlicingError, match="use a whole number and MiB or GiB"):
        MemoryUnit.parse(text)


def test_a_unit_of_nothing_is_refused() -> None:
    with pytest.raises(SlicingError, match="at least 1 MiB"):
        MemoryUnit.parse("0MiB")


@pytest.mark.parametrize(
    ("memory_mib", "units"), [(16276, 15), (81920, 80), (2002, 1), (1000, 0), (-5, 0)]
)
def test_gib_units_are_whole_ones(memory_mib: int, units: int) -> None:
    assert MemoryUnit.parse("GiB").units_in(memory_mib) == units


@given(st.integers(1, 1 << 20))
def test_a_unit_prints_as_it_is_read(mib: int) -> None:
    assert MemoryUnit.parse(str(MemoryUnit(mib))) == MemoryUnit(mib)
    assert parse_mib(describe_mib(mib)) == mib
