"""The soname of a library."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.gpus.elf import soname
from tests.unit.gpus.elf_files import library

NAMES = st.text("abcdefgh.-0123456789", min_size=1, max_size=60)


@given(NAMES)
def test_the_name_is_found_in_the_dynamic_table(name: str) -> None:
    assert soname(io.BytesIO(library(name))) == name


def test_a_library_may_have_no_soname() -> None:
    assert soname(io.BytesIO(library(None))) is None


@given(NAMES, st.data())
def test_a_damaged_library_has_no_name_or_some_name_but_is_no_accident(
    name: str, data: st.DataObject
) -> None:
    content = bytearray(library(name))
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)))
    found = soname(io.BytesIO(bytes(content[:end])))
    assert found is None or found


@given(st.binary(max_size=300))
def test_other_files_have_no_name(content: bytes) -> None:
    assert soname(io.BytesIO(content)) is None
