"""`nvidia-device-plugin`: the agent behind the command line of NVIDIA's device plugin."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence

from gpuslice.cli.agent import run_with_flags
from gpuslice.cli.command_line import given_flags
from gpuslice.cli.goflags import flags_for, parse
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.settings import Settings
from gpuslice.slicing.rules import Rules

PROGRAM = "nvidia-device-plugin"
# Whole GPUs, until the configuration says otherwise; a node without any is no error.
DEFAULTS = Settings(rules=Rules(), wait_for_devices=True)
FLAGS = flags_for(OPTIONS)

_WIDTH = 88


def main() -> None:
    flags = given_flags(PROGRAM, FLAGS, sys.argv[1:], usage)
    run_with_flags(PROGRAM, flags, DEFAULTS)


def flags_of(args: Sequence[str]) -> dict[str, str]:
    """Text by the name of its option, whatever alias was used."""
    return parse(FLAGS, args).given_texts()


def usage() -> str:
    lines = [
        f"Usage: {PROGRAM} [flags]",
        "",
        "Offers this node's GPUs to the kubelet. Flags have one dash or two, a value follows",
        "after a space or an equals sign. A switch is true when it stands alone; its value, true",
        "or false, follows after an equals sign only: --switch=false.",
        "",
    ]
    for option in OPTIONS:
        lines += _described(option)
    return "\n".join(lines)


def _described(option: Option) -> Iterator[str]:
    variables = ", ".join(f"${name}" for name in option.variables)
    if option.is_flag:
        names = ", ".join(f"--{name}" for name in (option.name, *option.aliases))
        yield f"  {names}{'' if option.kind is OptionKind.SWITCH else ' value'}  [{variables}]"
    else:
        yield f"  {variables}"
    yield textwrap.fill(option.explained, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
