"""The command line of programs that take Go's flags: help, version, mistakes, or what was given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from gpuslice.cli.goflags import Flag, FlagError, parse

_HELP = frozenset({"-h", "--h", "-help", "--help"})
_VERSION = frozenset({"-v", "--v", "-version", "--version"})


def given_flags(
    program: str, flags: Sequence[Flag], args: Sequence[str], explain: Callable[[], str]
) -> dict[str, str]:
    """Text by the name of its option; whatever else was asked for is answered, and that is all."""
    if _HELP.intersection(args):
        print(explain())
        sys.exit(0)
    if _VERSION.intersection(args):
        from importlib.metadata import version  # costs an agent 40 ms of its start otherwise

        print(f"{program} of gpuslice {version('gpuslice')}")
        sys.exit(0)
    try:
        return parse(flags, args).given_texts()
    except FlagError as error:
        print(f"{program}: {error}; `{program} --help` lists the flags", file=sys.stderr)
        sys.exit(2)
