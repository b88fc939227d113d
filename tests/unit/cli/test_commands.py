"""The `gpuslice` command and its commands for people."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from gpuslice.cli.agent import AGENT
from gpuslice.cli.commands import app
from gpuslice.cli.daemon_program import DaemonProgram
from gpuslice.cli.help_text import help_text
from gpuslice.cli.labels import LABELS
from gpuslice.cli.mps_control_daemon import MPS


@pytest.mark.parametrize("args", [["--help"], ["-h"]])
def test_help_lists_every_command_with_one_line(args: list[str]) -> None:
    result = CliRunner().invoke(app, args, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    commands = result.output.partition("Commands:\n")[2].splitlines()
    listed = dict(line.split(maxsplit=1) for line in commands)
    assert listed.keys() == {"agent", "mps", "labels", "version", "demo"}
    assert listed["agent"] == AGENT.summary
    assert listed["mps"] == MPS.summary
    assert listed["labels"] == LABELS.summary


@pytest.mark.parametrize(
    ("command", "program"), [("agent", AGENT), ("mps", MPS), ("labels", LABELS)]
)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_a_daemon_prints_its_own_help(command: str, program: DaemonProgram, flag: str) -> None:
    result = CliRunner().invoke(app, [command, flag])
    assert result.exit_code == 0
    assert result.output == f"{help_text(program)}\n"


@pytest.mark.parametrize("args", [["--version"], ["version"]])
def test_the_version_is_printed(args: list[str]) -> None:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0
    assert result.output == f"{version('gpuslice')}\n"


@pytest.mark.parametrize("mode", ["foo", "off"])
def test_an_invalid_mode_of_labels_is_rejected_with_the_valid_ones(mode: str) -> None:
    result = CliRunner().invoke(app, ["labels", f"--mode={mode}"], env={"NODE_NAME": "n"})
    assert result.exit_code == 1
    assert f"mode: '{mode}' is not valid: choose one of file, node-feature, node\n" in result.output


def test_an_invalid_log_level_ends_the_command_with_a_reason() -> None:
    result = CliRunner().invoke(app, ["agent", "--log-level", "loud"])
    assert result.exit_code == 1
    assert "log-level: 'loud' is not valid: choose one of debug" in result.output


def test_typer_passes_every_argument_to_a_daemon() -> None:
    result = CliRunner().invoke(app, ["agent", "--gds-enabled", "false", "--mps-pipe", "-h"])
    assert result.exit_code == 2
    assert "unexpected argument 'false'" in result.output


def test_an_unknown_command_is_rejected_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["agnt"])
    assert result.exit_code == 2
    assert "agnt" in result.output
