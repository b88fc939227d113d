"""Parses command lines like Go's flag package, for every daemon.

A flag has one dash or two. Its value follows a space or an equals sign. A switch without a value is
true; its value must follow an equals sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.value_parsers import parse_boolean


class FlagError(ValueError):
    """The command line is not valid."""


class _Flag(NamedTuple):
    option: Option
    # For --no-switch.
    negated: bool


def parse_flags(
    options: Iterable[Option], args: Sequence[str], *, negatable: bool = False
) -> dict[str, str]:
    """The values of flags by the name of their option.

    The last value of a flag wins. Values of a list are joined by commas. With `negatable`, a switch
    also has the flag --no-switch. Raises FlagError.
    """
    known = dict(_flags_by_name(options, negatable=negatable))
    values: dict[str, str] = {}
    words = iter(args)
    previous = ""
    for word in words:
        name, equals, text = word.lstrip("-").partition("=")
        if not word.startswith("-") or word.startswith("---") or not name:
            raise FlagError(_unexpected(word, known.get(previous)))
        if name not in known:
            raise FlagError(_undefined(name, known))
        option, negated = known[name]
        if option.kind is OptionKind.SWITCH:
            value = _switch(name, known[name], text if equals else None)
        else:
            value = _value(option, text if equals else _next_word(name, words))
        if option.kind is OptionKind.LIST and option.name in values:
            value = f"{values[option.name]},{value}"
        values[option.name] = value
        previous = "" if equals or negated else name
    return values


def _flags_by_name(options: Iterable[Option], *, negatable: bool) -> Iterator[tuple[str, _Flag]]:
    for option in options:
        for name in (option.name, *option.aliases) if option.is_flag else ():
            yield name, _Flag(option, negated=False)
            if negatable and option.kind is OptionKind.SWITCH:
                yield f"no-{name}", _Flag(option, negated=True)


def _switch(name: str, flag: _Flag, text: str | None) -> str:
    if text is None:
        return "false" if flag.negated else "true"
    if flag.negated:
        raise FlagError(f"-{name} does not take a value: use --{name} or --{flag.option.name}")
    value = parse_boolean(text)
    if value is None:
        raise FlagError(f"invalid value {text!r} for -{name}: use true or false")
    return str(value).lower()


def _value(option: Option, text: str) -> str:
    if option.kind is not OptionKind.NUMBER:
        return text
    try:
        return str(int(text, 0))
    except ValueError:
        raise FlagError(f"invalid value {text!r} for -{option.name}: use a number") from None


def _next_word(name: str, words: Iterator[str]) -> str:
    word = next(words, None)
    if word is None:
        raise FlagError(f"flag needs an argument: -{name}")  # Go's words
    return word


def _unexpected(word: str, previous: _Flag | None) -> str:
    is_switch = previous is not None and previous.option.kind is OptionKind.SWITCH
    if previous is not None and is_switch and parse_boolean(word) is not None:
        remedy = f"set a switch with an equals sign: --{previous.option.name}={word}"
    else:
        remedy = "only flags are accepted"
    return f"unexpected argument {word!r}: {remedy}"


def _undefined(name: str, known: Iterable[str]) -> str:
    import difflib  # only needed for errors

    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {dashed(near[0])}?)" if near else ""
    return f"flag provided but not defined: -{name}{hint}"  # Go's words


def dashed(name: str) -> str:
    """The usual form of a flag: -o, --output."""
    return f"-{name}" if len(name) == 1 else f"--{name}"
