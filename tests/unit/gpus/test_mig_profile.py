from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.gpus.mig_profile import name_of_profile, suffix_in_name, suffix_of_profile

MIB = 1 << 20


@pytest.mark.parametrize(
    ("gpu_mib", "slices", "memory_mib", "name"),
    [
        (40960, (1, 1), 4864, "1g.5gb"),
        (40960, (1, 1), 9984, "1g.10gb"),
        (40960, (3, 3), 20096, "3g.20gb"),
        (40960, (7, 7), 40448, "7g.40gb"),
        (81559, (1, 1), 9984, "1g.10gb"),
        (81559, (7, 7), 81152, "7g.80gb"),
        (24576, (1, 1), 5952, "1g.6gb"),
        (24576, (2, 2), 11968, "2g.12gb"),
        # An eighth of 180 GiB is 22.5: half a gigabyte counts as one.
        (183359, (1, 1), 22016, "1g.23gb"),
        (183359, (3, 3), 91392, "3g.90gb"),
    ],
)
def test_profiles_have_the_names_that_nvidia_gives_them(
    gpu_mib: int, slices: tuple[int, int], memory_mib: int, name: str
) -> None:
    assert name_of_profile(*slices, memory_mib, gpu_mib * MIB) == name


def test_a_compute_instance_that_is_smaller_than_its_gpu_instance_is_named_first() -> None:
    assert name_of_profile(3, 1, 20096, 40960 * MIB) == "1c.3g.20gb"
    assert name_of_profile(3, 3, 20096, 40960 * MIB) == "3g.20gb"


@pytest.mark.parametrize(
    ("number", "suffix"),
    [(0, ""), (4, ""), (7, "+me"), (9, ""), (10, "+gfx"), (13, "-me"), (15, "+me.all"), (99, "")],
)
def test_special_profiles_have_a_suffix(number: int, suffix: str) -> None:
    assert suffix_of_profile(number) == suffix
    assert name_of_profile(1, 1, 9984, 81559 * MIB, suffix) == f"1g.10gb{suffix}"


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "+me"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb-me", "-me"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb+me.all", "+me.all"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", ""),
        ("something else", ""),
        ("", ""),
    ],
)
def test_the_suffix_is_read_from_the_name_of_the_device(name: str, suffix: str) -> None:
    assert suffix_in_name(name) == suffix


@given(st.text())
def test_no_name_of_a_device_is_a_problem(name: str) -> None:
    assert suffix_in_name(name)[:1] in ("", "+", "-")


@given(
    memory_mib=st.integers(1, 200_000),
    gpu_mib=st.integers(1, 200_000),
)
def test_a_part_is_never_named_larger_than_the_whole(memory_mib: int, gpu_mib: int) -> None:
    part = name_of_profile(1, 1, min(memory_mib, gpu_mib), gpu_mib * MIB)
    whole = -(-gpu_mib // 1024)
    assert 0 <= int(part.removeprefix("1g.").removesuffix("gb")) <= whole


def test_a_gpu_without_known_memory_still_has_a_profile() -> None:
    assert name_of_profile(1, 1, 4864, 0) == "1g.0gb"
