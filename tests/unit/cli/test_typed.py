"""The same options as those of a Typer command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from gpuslice.cli.commands import app
from gpuslice.cli.switches import SwitchCommand
from gpuslice.cli.typed import takes
from gpuslice.config.agent_options import OPTIONS


def flags_of(*args: str) -> Mapping[str, str]:
    heard: list[Mapping[str, str]] = []
    command = typer.Typer()

    @command.command(cls=SwitchCommand)
    @takes(OPTIONS)
    def agent(flags: Mapping[str, str]) -> None:
        heard.append(flags)

    result = CliRunner().invoke(command, args, env={"MIG_STRATEGY": "mixed"})
    assert result.exit_code == 0, result.output
    return heard[0]


def test_nothing_given_is_nothing_said_even_with_a_variable() -> None:
    assert flags_of() == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--mig-strategy", "single"), {"mig-strategy": "single"}),
        (("--mig-strategy=single",), {"mig-strategy": "single"}),
        (("--fail-on-init-error",), {"fail-on-init-error": "true"}),
        (("--no-fail-on-init-error",), {"fail-on-init-error": "false"}),
        (("--fail-on-init-error=false",), {"fail-on-init-error": "false"}),
        (("--fail-on-init-error=1",), {"fail-on-init-error": "true"}),
        # What follows a flag that has a value is this value, whatever it looks like.
        (("--mps-pipe", "--gds-enabled=false"), {"mps-pipe": "--gds-enabled=false"}),
        (("--nvidia-driver-root", "/d"), {"driver-root": "/d"}),
        (("--device-list-strategy=envvar,cdi-cri",), {"device-list-strategy": "envvar,cdi-cri"}),
        (
            ("--device-list-strategy=envvar", "--device-list-strategy=cdi-cri"),
            {"device-list-strategy": "envvar,cdi-cri"},
        ),
        (("--mps-pipe", ""), {"mps-pipe": ""}),
    ],
)
def test_flags_become_texts(args: tuple[str, ...], expected: dict[str, str]) -> None:
    assert flags_of(*args) == expected


def test_the_agents_help_names_every_flag_and_variable() -> None:
    text = CliRunner().invoke(app, ["agent", "--help"], env={"COLUMNS": "200"}).output
    for option in OPTIONS:
        if option.is_flag:
            assert f"--{option.name}" in text
            assert all(name in text for name in option.variables)


@pytest.mark.parametrize("command", ["agent", "labels"])
def test_the_help_says_how_a_switch_is_turned_off(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert "--switch=true, --switch=false" in text


@pytest.mark.parametrize("args", [["--version"], ["version"]])
def test_the_version_is_printed(args: list[str]) -> None:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0
    assert result.output == f"{version('gpuslice')}\n"


@pytest.mark.parametrize("mode", ["foo", "off"])
def test_a_wrong_place_for_labels_is_refused_with_those_there_are(mode: str) -> None:
    result = CliRunner().invoke(app, ["labels", f"--mode={mode}"], env={"NODE_NAME": "n"})
    assert result.exit_code == 1
    assert f"mode: '{mode}' is not valid: choose one of file, node-feature, node\n" in result.output


def test_a_wrong_log_level_ends_the_command_with_a_reason() -> None:
    result = CliRunner().invoke(app, ["agent", "--log-level", "loud"])
    assert result.exit_code == 1
    assert "gpuslice agent: log-level: 'loud' is not valid: choose one of debug" in result.output
