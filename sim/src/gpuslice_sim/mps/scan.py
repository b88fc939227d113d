"""Reads the arguments of a command like sscanf(3), with which real control daemons read them.

What does not match stays at its default, and what follows a match is ignored.
"""

from __future__ import annotations

import re

_SPACE = " \t\n\v\f\r"
_WORD = re.compile(rf"[{_SPACE}]*([^{_SPACE}]+)")
_INTEGER = re.compile(rf"[{_SPACE}]*([+-]?[0-9]+)")
_DECIMAL = re.compile(rf"[{_SPACE}]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_HEXADECIMAL = re.compile(
    rf"[{_SPACE}]*([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)"
)
_UNSIGNED = re.compile(r"([+-]?)([0-9]+)")
_MOST = (1 << 64) - 1


class Scanner:
    """Conversions in order. After the first that does not match, none does."""

    def __init__(self, text: str) -> None:
        self._rest: str | None = text

    def next_is(self, start: str) -> bool:
        """Whether the next word starts like this."""
        return self._rest is not None and self._rest.lstrip(_SPACE).startswith(start)

    def word(self) -> str | None:
        return self._take(_WORD)

    def integer(self) -> int | None:
        """As `int`: numbers beyond its range wrap."""
        text = self._take(_INTEGER)
        if text is None:
            return None
        value = max(-(1 << 63), min(int(text), (1 << 63) - 1))
        return (value + (1 << 31)) % (1 << 32) - (1 << 31)

    def number(self) -> float | None:
        rest = self._rest
        if (text := self._take(_HEXADECIMAL)) is not None:
            return float.fromhex(text)
        self._rest = rest
        text = self._take(_DECIMAL)
        return None if text is None else float(text)

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._rest) if self._rest is not None else None
        if found is None:
            self._rest = None
            return None
        self._rest = found.string[found.end() :]
        return found[1]


def unsigned(text: str) -> tuple[int, str]:
    """As strtoull(3): the number modulo 2^64, 0 without one, and the text after it."""
    found = _UNSIGNED.match(text)
    if found is None:
        return 0, text
    value = min(int(found[2]), _MOST)
    return (-value & _MOST if found[1] == "-" and value < _MOST else value), text[found.end() :]
