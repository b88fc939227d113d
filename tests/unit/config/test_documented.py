"""docs/configuration.md has a row for every option, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.file_schema import ConfigFile
from gpuslice.config.load import load_settings
from gpuslice.config.option_definition import Option
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.unknown_keys import all_keys

TEXT = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def row(option: Option) -> str:
    """The row of an option in the documentation."""
    names = ", ".join(f"`--{name}`" for name in (option.name, *option.aliases))
    cells = [
        names if option.is_flag else "",
        ", ".join(f"`{name}`" for name in option.variables),
        f"`{option.key}`" if option.key else "",
        option.default,
        option.help,
    ]
    return "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_a_row(option: Option) -> None:
    assert row(option) in TEXT.splitlines()


def test_every_key_of_the_file_is_in_the_layout() -> None:
    layout = next(example for example in EXAMPLES if "# everything" in example)
    for path in all_keys(ConfigFile):
        assert re.search(rf"\b{path.rpartition('.')[2]}:", layout), path


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_file_that_loads_without_a_warning(example: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(example)
    assert load_settings(collect_option_values({}, {}, OPTIONS), None, file).warnings == ()
