"""The command line of NVIDIA's device plugin."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cli.goflags import FlagError
from gpuslice.cli.nvidia import FLAGS, flags_of, usage
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.option_definition import Option, OptionKind

PROGRAM = Path(sys.executable).parent / "nvidia-device-plugin"
SWITCHES = [option for option in OPTIONS if option.kind is OptionKind.SWITCH]
TEXTS = [option for option in OPTIONS if option.kind is OptionKind.TEXT]
LISTS = [option for option in OPTIONS if option.kind is OptionKind.LIST]

dashes = st.sampled_from(["-", "--"])
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def written(draw: st.DrawFn) -> tuple[Option, str, list[str]]:
    """An option, its value and one of the ways to write both."""
    option = draw(st.sampled_from(SWITCHES + TEXTS + LISTS))
    name = draw(dashes) + draw(st.sampled_from([option.name, *option.aliases]))
    if option.kind is OptionKind.SWITCH:
        value = draw(st.sampled_from(["true", "false"]))
        forms = [[f"{name}={value}"]] + ([[name]] if value == "true" else [])
    else:
        value = draw(words)
        forms = [[f"{name}={value}"], [name, value]]
    return option, value, draw(st.sampled_from(forms))


@given(st.lists(written()))
def test_flags_are_understood_however_they_are_written(
    given: list[tuple[Option, str, list[str]]],
) -> None:
    expected: dict[str, str] = {}
    for option, value, _ in given:
        if option.kind is OptionKind.LIST and option.name in expected:
            expected[option.name] += f",{value}"
        else:
            expected[option.name] = value
    assert flags_of([arg for _, _, args in given for arg in args]) == expected


@given(st.lists(words))
def test_any_command_line_is_understood_or_refused_with_a_reason(args: list[str]) -> None:
    with contextlib.suppress(FlagError):
        flags_of(args)


@pytest.mark.parametrize(
    ("args", "because"),
    [
        (["--mig-stratagy=none"], r"not defined: -mig-stratagy \(did you mean -mig-strategy\?\)"),
        (["--pass-device-specs", "false"], r"unexpected argument 'false'.*-switch=false"),
        (["--mig-strategy"], "flag needs an argument: -mig-strategy"),
        (["--pass-device-specs=on"], "invalid value 'on' for -pass-device-specs"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_reason(args: list[str], because: str) -> None:
    with pytest.raises(FlagError, match=because):
        flags_of(args)


def test_the_command_line_of_the_chart_is_understood() -> None:
    args = "--mig-strategy=mixed --pass-device-specs --device-list-strategy=envvar,cdi-cri"
    assert flags_of(args.split()) == {
        "mig-strategy": "mixed",
        "pass-device-specs": "true",
        "device-list-strategy": "envvar,cdi-cri",
    }


def test_the_usage_names_every_flag_alias_and_variable() -> None:
    text = usage()
    for option in OPTIONS:
        for name in (option.name, *option.aliases) if option.is_flag else ():
            assert re.search(rf"--{name}\b", text)
        assert all(f"${name}" in text for name in option.variables)
    assert len(FLAGS) == sum(option.is_flag for option in OPTIONS)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, check=False, env={})


def test_help_and_version_are_printed() -> None:
    assert run("--help").stdout.startswith("Usage: nvidia-device-plugin")
    assert re.match(r"nvidia-device-plugin of gpuslice \d", run("--version").stdout)


def test_a_wrong_flag_ends_the_program_with_2_and_one_line() -> None:
    done = run("--speed")
    assert done.returncode == 2
    assert done.stderr.startswith("nvidia-device-plugin: flag provided but not defined: -speed")
