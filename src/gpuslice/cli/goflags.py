"""Command lines in the manner of Go's flag package, for drop-in entry points.

One dash or two, `-name=value` or `-name value`, and a switch is true when it stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.value_parsers import parse_boolean


class FlagError(ValueError):
    """The command line is not understood."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    help: str
    default: bool | int | str
    aliases: tuple[str, ...] = ()
    # Several of them make one list, joined by commas; else the last one counts.
    repeats: bool = False


def flags_for(options: Iterable[Option]) -> tuple[Flag, ...]:
    """The flags of a table of options. A variable alone is none."""
    return tuple(
        Flag(
            option.name,
            option.explained,
            default=False if option.kind is OptionKind.SWITCH else "",
            aliases=option.aliases,
            repeats=option.kind is OptionKind.LIST,
        )
        for option in options
        if option.is_flag
    )


@dataclass(frozen=True, slots=True)
class Parsed:
    """Values of all flags, and which of them were given."""

    values: dict[str, bool | int | str]
    given: frozenset[str]

    def switch(self, name: str) -> bool:
        return bool(self.values[name])

    def number(self, name: str) -> int:
        return int(self.values[name])

    def text(self, name: str) -> str:
        return str(self.values[name])

    def given_texts(self) -> dict[str, str]:
        """What was given, as it would be written."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.values.items()
            if name in self.given
        }


def parse(flags: Sequence[Flag], args: Sequence[str]) -> Parsed:
    known = {name: flag for flag in flags for name in (flag.name, *flag.aliases)}
    values = {flag.name: flag.default for flag in flags}
    given: set[str] = set()
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.lstrip("-").partition("=")
        if not word.startswith("-") or word.startswith("---") or not name:
            raise FlagError(
                f"unexpected argument {word!r}: only flags are understood, "
                "and a switch has its value after an equals sign (-switch=false)"
            )
        if name not in known:
            raise FlagError(f"flag provided but not defined: -{name}{_hint(name, known)}")
        flag = known[name]
        if not equals:
            text = _value_after(flag, rest)
        if flag.repeats and flag.name in given:
            text = f"{values[flag.name]},{text}"
        values[flag.name] = _convert(flag, text)
        given.add(flag.name)
    return Parsed(values, frozenset(given))


def usage(program: str, flags: Sequence[Flag]) -> str:
    lines = [f"Usage of {program}:"]
    for flag in flags:
        kind = "" if isinstance(flag.default, bool) else f" {type(flag.default).__name__}"
        default = "" if flag.default in ("", False) else f" (default {flag.default})"
        lines += [f"  -{flag.name}{kind}", f"        {flag.help}{default}"]
    return "\n".join(lines)


def _hint(name: str, known: Iterable[str]) -> str:
    import difflib  # only a mistake needs it

    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean -{near[0]}?)" if near else ""


def _value_after(flag: Flag, rest: list[str]) -> str:
    if isinstance(flag.default, bool):
        return "true"
    if not rest:
        raise FlagError(f"flag needs an argument: -{flag.name}")
    return rest.pop(0)


def _convert(flag: Flag, text: str) -> bool | int | str:
    if isinstance(flag.default, bool):
        value = parse_boolean(text)
        if value is None:
            raise FlagError(f"invalid value {text!r} for -{flag.name}: use true or false")
        return value
    if isinstance(flag.default, int):
        try:
            return int(text, 0)
        except ValueError:
            raise FlagError(f"invalid value {text!r} for -{flag.name}: use a number") from None
    return text
