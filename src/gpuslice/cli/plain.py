"""Command lines that need no help: long flags as Typer reads them, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.value_parsers import parse_boolean


def plain_flags(options: Iterable[Option], args: Sequence[str]) -> dict[str, str] | None:
    """The flags that were given, text by the name of the option, as Typer would have read them.

    None for whatever else there is: calls for help, mistakes, unusual forms. Typer answers those.
    """
    known = dict(_written(options))
    flags: dict[str, str] = {}
    rest = iter(args)
    for word in rest:
        name, equals, text = word.partition("=")
        if name not in known:
            return None
        option, alone = known[name]
        if option.kind is OptionKind.SWITCH:
            value = _switched(alone, text) if equals else alone
        else:
            value = text if equals else _following(rest)
        if value is None:
            return None
        if option.kind is OptionKind.LIST and option.name in flags:
            value = f"{flags[option.name]},{value}"
        flags[option.name] = value
    return flags


def _written(options: Iterable[Option]) -> Iterator[tuple[str, tuple[Option, str | None]]]:
    """Flag -> its option, and what a switch says when it stands alone."""
    for option in options:
        for name in (option.name, *option.aliases):
            if option.kind is OptionKind.SWITCH:
                yield f"--{name}", (option, "true")
                yield f"--no-{name}", (option, "false")
            elif option.is_flag:
                yield f"--{name}", (option, None)


def _switched(alone: str | None, text: str) -> str | None:
    """Only the positive form has a value: nobody should have to read `--no-…=false`."""
    value = parse_boolean(text)
    return None if alone == "false" or value is None else str(value).lower()


def _following(rest: Iterator[str]) -> str | None:
    following = next(rest, None)
    return None if following is None or following.startswith("-") else following
