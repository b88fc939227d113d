"""Finds and removes unknown keys of the configuration file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import get_args, get_origin

import msgspec

# More would not help: the file is probably of another program.
_MOST_MESSAGES = 10
_LONGEST_NAME = 64


def remove_unknown_keys(
    document: object, section: type[msgspec.Struct]
) -> tuple[object, tuple[str, ...]]:
    """The document without the keys that the section does not have, and a message for each.

    Only the first ten keys have a message of their own. A key without a value (`sharing:`) is
    removed too, unless the section has an effect even without content (`memory:`).
    """
    unknown = _Unknown(section)
    known = _remove(document, section, "", unknown)
    return known, unknown.messages()


def all_keys(section: type[msgspec.Struct], parent: str = "") -> Iterator[str]:
    """Every key with its parents, for example `sharing.memory.unit`."""
    for field in msgspec.structs.fields(section):
        key = _join(parent, field.encode_name)
        yield key
        inner = _section_of(field.type)
        if inner is not None:
            yield from all_keys(inner, key)


class _Unknown:
    """The unknown keys. Suggestions are expensive, so only the first keys get one."""

    def __init__(self, root: type[msgspec.Struct]) -> None:
        self._keys = tuple(all_keys(root))
        self._messages: list[str] = []
        self._more = 0

    def add(self, name: object, parent: str, siblings: list[str]) -> None:
        if len(self._messages) < _MOST_MESSAGES:
            self._messages.append(_message(str(name), parent, siblings, self._keys))
        else:
            self._more += 1

    def messages(self) -> tuple[str, ...]:
        more = (f"and {self._more} more unknown keys",) if self._more else ()
        return (*self._messages, *more)


def _remove(value: object, section: type[msgspec.Struct], parent: str, unknown: _Unknown) -> object:
    if isinstance(value, list):
        return [
            _remove(item, section, f"{parent}[{position}]", unknown)
            for position, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    fields = {field.encode_name: field for field in msgspec.structs.fields(section)}
    known: dict[str, object] = {}
    for name, item in value.items():
        if name not in fields:
            unknown.add(name, parent, list(fields))
            continue
        inner = _section_of(fields[name].type)
        if item is not None:
            key = _join(parent, name)
            known[name] = item if inner is None else _remove(item, inner, key, unknown)
        elif inner is not None and fields[name].default is None:
            known[name] = {}
    return known


def _message(name: str, parent: str, siblings: list[str], keys: tuple[str, ...]) -> str:
    if len(name) > _LONGEST_NAME:
        return f"unknown key `{_join(parent, name[:_LONGEST_NAME])}…`; remove it"
    message = f"unknown key `{_join(parent, name)}`"
    elsewhere = [key for key in keys if _same(key.rpartition(".")[2], name)]
    sibling = _nearest(name, siblings)
    if sibling is not None and _same(sibling, name):
        return f"{message}; did you mean `{sibling}`?"
    if elsewhere:
        return f"{message}; it belongs at `{'` or `'.join(elsewhere)}`"
    nearest = sibling or _nearest(name, [key.rpartition(".")[2] for key in keys])
    return f"{message}; did you mean `{nearest}`?" if nearest else f"{message}; remove it"


def _nearest(name: str, names: list[str]) -> str | None:
    """Case-insensitive: the wrong case is the most common mistake."""
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _section_of(kind: object) -> type[msgspec.Struct] | None:
    """The section of a key: `Section`, `Section | None` or `tuple[Section, ...]`."""
    if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, msgspec.Struct):
        return kind
    return next(filter(None, map(_section_of, get_args(kind))), None)


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
