"""`nvidia-device-plugin`: the agent behind the command line of NVIDIA's device plugin."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence

from gpuslice.cli.agent import run_with_flags
from gpuslice.cli.goflags import FlagError, flags_for, parse
from gpuslice.config.option import Kind, Option
from gpuslice.config.settings import Settings
from gpuslice.config.table import OPTIONS
from gpuslice.slicing.rules import Rules

PROGRAM = "nvidia-device-plugin"
# Whole GPUs, until the configuration says otherwise; a node without any is no error.
DEFAULTS = Settings(rules=Rules(), wait_for_devices=True)
FLAGS = flags_for(OPTIONS)

_HELP = frozenset({"-h", "--h", "-help", "--help"})
_VERSION = frozenset({"-v", "--v", "-version", "--version"})
_WIDTH = 88


def main() -> None:
    args = sys.argv[1:]
    if _HELP.intersection(args):
        print(usage())
    elif _VERSION.intersection(args):
        from importlib.metadata import version  # costs an agent 40 ms of its start otherwise

        print(f"{PROGRAM} of gpuslice {version('gpuslice')}")
    else:
        try:
            flags = flags_of(args)
        except FlagError as error:
            print(f"{PROGRAM}: {error}; `{PROGRAM} --help` lists the flags", file=sys.stderr)
            sys.exit(2)
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
        yield f"  {names}{'' if option.kind is Kind.SWITCH else ' value'}  [{variables}]"
    else:
        yield f"  {variables}"
    yield textwrap.fill(option.explained, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
