"""The text of --help for daemons."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpuslice.cli.daemon_program import DaemonProgram
from gpuslice.cli.go_flags import dashed
from gpuslice.config.option_definition import Option, OptionKind

_WIDTH = 88
_PLACEHOLDERS = {OptionKind.TEXT: " VALUE", OptionKind.NUMBER: " NUMBER", OptionKind.LIST: " LIST"}


def help_text(program: DaemonProgram) -> str:
    usage = [f"{program.name} {form}" for form in program.usage]
    lines = [f"Usage: {usage[0]}", *(f"       {form}" for form in usage[1:])]
    for paragraph in (program.summary, *program.details, _syntax(program)):
        lines += ["", *_wrap(paragraph)]
    for group in program.help_groups:
        lines += ["", f"{group.title}:"]
        for option in group.options:
            lines += _describe(option)
    return "\n".join(lines)


def _syntax(program: DaemonProgram) -> str:
    off = "--switch=false" if program.is_drop_in else "--switch=false or --no-switch"
    sentences = [
        "Flags have one dash or two. A value follows a space or an equals sign.",
        f"A switch without a value is true; turn it off with {off}.",
    ]
    if any(option.kind is OptionKind.LIST for option in program.options):
        sentences.append("Separate the values of a list by commas, or repeat the flag.")
    if any(option.variables for option in program.options):
        sentences.append("Flags take precedence over the environment variables in brackets.")
    return " ".join(sentences)


def _describe(option: Option) -> Iterator[str]:
    variables = ", ".join(f"${name}" for name in option.variables)
    sources = [f"(default: {option.default})"] if option.default else []
    if option.is_flag:
        names = ", ".join(map(dashed, (option.name, *option.aliases)))
        yield f"  {names}{_PLACEHOLDERS.get(option.kind, '')}"
        sources += [f"[{variables}]"] if variables else []
    else:
        yield f"  {variables}"
    yield from _wrap(option.help, indent=6)
    yield from _wrap(" ".join(sources), indent=6)


def _wrap(text: str, *, indent: int = 0) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text, _WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )
