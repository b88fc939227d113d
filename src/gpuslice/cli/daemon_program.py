"""What every daemon does at startup: command line, logs, signals, and errors that end it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuslice.cli.go_flags import FlagError, parse_flags
from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option, OptionGroup, OptionKind, options_in
from gpuslice.config.option_values import OptionReader, OptionValues, collect_option_values
from gpuslice.node.errors import ProgramError
from gpuslice.telemetry.logs import LogFormat, LogLevel, configure_logs

_HELP = Option("help", "Print this help.", kind=OptionKind.SWITCH, aliases=("h",))
_VERSION = Option("version", "Print the version.", kind=OptionKind.SWITCH, aliases=("v",))


@dataclass(frozen=True, slots=True)
class DaemonProgram:
    """The command line of a daemon."""

    name: str
    # One line, also for `gpuslice --help`.
    summary: str
    groups: tuple[OptionGroup, ...]
    # Further paragraphs of --help.
    details: tuple[str, ...] = ()
    usage: tuple[str, ...] = ("[flags]",)
    # A drop-in replacement accepts what the original accepts, so it has no --no-switch.
    is_drop_in: bool = True

    @property
    def options(self) -> tuple[Option, ...]:
        return options_in(self.groups)

    @property
    def help_groups(self) -> tuple[OptionGroup, ...]:
        """With --help and --version, without aliases that the program itself uses."""
        names = {name for option in self.options for name in (option.name, *option.aliases)}
        built_in = (_HELP, _VERSION) if self.is_drop_in else (_HELP,)
        other = tuple(
            replace(option, aliases=tuple(name for name in option.aliases if name not in names))
            for option in built_in
        )
        return (*self.groups, OptionGroup("Other", other))


def read_flags(program: DaemonProgram, args: Sequence[str]) -> dict[str, str]:
    """The values of flags by the name of their option.

    Exits after --help and --version. Exits with status 2 if the command line is not valid.
    """
    try:
        flags = parse_flags(options_in(program.help_groups), args, negatable=not program.is_drop_in)
    except FlagError as error:
        print(f"{program.name}: {error}; see {program.name} --help", file=sys.stderr)
        sys.exit(2)
    if flags.pop(_HELP.name, "") == "true":
        from gpuslice.cli.help_text import help_text

        print(help_text(program))
        sys.exit(0)
    if flags.pop(_VERSION.name, "") == "true":
        from importlib.metadata import version  # takes 40 ms

        print(f"{program.name} of gpuslice {version('gpuslice')}")
        sys.exit(0)
    return flags


def read_option_values(program: DaemonProgram, args: Sequence[str]) -> OptionValues:
    """The values of flags and environment variables. Exits like `read_flags`."""
    return collect_option_values(read_flags(program, args), os.environ, program.options)


@contextlib.contextmanager
def running_daemon(
    program: DaemonProgram, values: OptionValues, *, reloads: bool = True
) -> Iterator[None]:
    """Configure logs, and exit with a message if the daemon fails.

    `reloads`: the daemon handles SIGHUP. gRPC must be imported inside, because its core reads
    environment variables that configure_logs sets.
    """
    if reloads:
        # SIGHUP would end the process until the daemon handles it. The settings are not read yet,
        # so no change is lost.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with exit_with_message(program.name, ProgramError, ConfigError):
        options = OptionReader(values)
        configure_logs(
            options.choice("log-level", LogLevel.INFO), options.choice("log-format", LogFormat.TEXT)
        )
        yield


@contextlib.contextmanager
def exit_with_message(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Print one of these errors, with its reason code, to standard error and exit with status 1."""
    try:
        yield
    except errors as error:
        code: Code | None = getattr(error, "code", None)
        print(f"{command}: {f'{code}: ' if code else ''}{error}", file=sys.stderr, flush=True)
        if getattr(error, "at_once", False):
            os._exit(1)
        sys.exit(1)
