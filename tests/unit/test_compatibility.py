"""docs/compatibility.md leaves nothing out: no option, no key, no accepted difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuslice.config.file import ConfigFile
from gpuslice.config.keys import all_paths
from gpuslice.config.option import Option
from gpuslice.config.table import OPTIONS
from tests.peers.agreement.differences import ACCEPTED

TEXT = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
NVIDIA = TEXT.partition("## NVIDIA's device plugin")[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in NVIDIA.splitlines()
    if line.startswith("|")
]
VERDICTS = {"same", "better", "own", "not applicable"}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_a_row_with_all_its_names(option: Option) -> None:
    flags = {f"--{name}" for name in (option.name, *option.aliases)} if option.is_flag else set()
    assert any(
        flags == names(flag) and set(option.variables) == names(variables)
        for flag, variables, *_ in ROWS
    )


@pytest.mark.parametrize("key", list(all_paths(ConfigFile)))
def test_every_key_of_the_file_has_a_row(key: str) -> None:
    assert any(key in names(cell) for row in ROWS for cell in row[:3])


def test_every_row_has_a_verdict() -> None:
    differences = {one.id for one in ACCEPTED}
    for row in ROWS:
        is_head = set("".join(row)) <= {"-"} or "here" in row
        assert is_head or VERDICTS & set(row) or names(row[0]) & differences, row


def test_the_accepted_differences_are_those_that_tests_accept() -> None:
    table = NVIDIA.partition("### Differences")[2]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == [one.id for one in ACCEPTED]
