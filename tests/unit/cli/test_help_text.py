"""The --help of every daemon."""

from __future__ import annotations

import re

import pytest

from gpuslice.cli import agent, config_manager, gpushare, labels, mps_control_daemon, nvidia
from gpuslice.cli.daemon_program import DaemonProgram
from gpuslice.cli.help_text import help_text

OWN = [agent.AGENT, labels.LABELS]
DROP_IN = [
    nvidia.PROGRAM,
    gpushare.PROGRAM,
    config_manager.PROGRAM,
    mps_control_daemon.PROGRAM,
    labels.GPU_FEATURE_DISCOVERY,
]
every_program = pytest.mark.parametrize("program", OWN + DROP_IN, ids=lambda one: one.name)


def entries(text: str) -> dict[str, str]:
    """The description of each option by its names, without the placeholder of a value."""
    _, *options = re.split(r"^  (?=[-$])", text, flags=re.MULTILINE)
    found = {}
    for option in options:
        names, _, description = option.partition("\n")
        names = re.sub(" (VALUE|NUMBER|LIST)$", "", names)
        found[names] = " ".join(description.split("\n\n")[0].split())
    return found


@every_program
def test_every_option_is_listed_with_its_names_default_and_variables(
    program: DaemonProgram,
) -> None:
    found = entries(help_text(program))
    for option in program.options:
        variables = ", ".join(f"${name}" for name in option.variables)
        if not option.is_flag:
            assert found[variables] == option.help
            continue
        names = [option.name, *option.aliases]
        flags = ", ".join(f"-{name}" if len(name) == 1 else f"--{name}" for name in names)
        default = f" (default: {option.default})" if option.default else ""
        sources = f" [{variables}]" if variables else ""
        assert found[flags] == f"{option.help}{default}{sources}"
    assert "--help, -h" in found


@every_program
def test_it_is_readable_on_a_narrow_terminal(program: DaemonProgram) -> None:
    lines = help_text(program).splitlines()
    assert lines[0] == f"Usage: {program.name} [flags]"
    assert max(map(len, lines)) <= 88
    assert all(f"{group.title}:" in lines for group in program.groups)


@every_program
def test_it_shows_how_to_turn_a_switch_off(program: DaemonProgram) -> None:
    text = help_text(program)
    assert "--switch=false" in text
    assert ("--no-switch" in text) == (program in OWN)


def test_a_program_with_a_flag_v_does_not_list_it_as_its_version() -> None:
    assert "--version, -v" in entries(help_text(nvidia.PROGRAM))
    assert "--version" in entries(help_text(gpushare.PROGRAM))
    assert "-v NUMBER\n" in help_text(gpushare.PROGRAM)
