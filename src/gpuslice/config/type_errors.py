"""Error messages for values of the wrong type in the configuration file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Union, get_args, get_origin

import msgspec

from gpuslice.config.errors import ConfigError
from gpuslice.config.value_parsers import parse_boolean

_KEY = re.compile(r" - at `\$\.?(?P<key>[^`]*)`$")
_STEP = re.compile(r"\[(?P<position>[0-9]+)\]|(?P<name>[^.\[\]]+)")
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")
_TRUE_WORDS = frozenset({"on", "yes", "y"})
_FALSE_WORDS = frozenset({"off", "no", "n"})


def type_error(
    error: msgspec.ValidationError, document: object, section: type[msgspec.Struct], path: Path
) -> ConfigError:
    """The key, the value and what to write instead.

    `document` could not be converted to `section`; `error` names the key at which that failed.
    """
    found = _KEY.search(str(error))
    key = found["key"] if found else ""
    value, expected = document, _Expected.of(section)
    for step in _STEP.finditer(key):
        value = _value_in(value, step["name"] or int(step["position"]))
        expected = expected.below(step["name"])
    if not key:
        return ConfigError("config-file", str(path), f"it is {_kind_of(value)}; {expected.remedy}")
    return ConfigError(key, value, "; ".join((expected.remedy, *_hints(expected, value))))


@dataclass(frozen=True, slots=True)
class _Expected:
    """The types that a key accepts: plain types, lists, sections."""

    plain: frozenset[type]
    items: object = None
    section: type[msgspec.Struct] | None = None

    @classmethod
    def of(cls, kind: object) -> _Expected:
        members = list(_members(kind))
        lists = [get_args(member)[0] for member in members if get_origin(member) is tuple]
        plain = [member for member in members if isinstance(member, type)]
        sections = [member for member in plain if issubclass(member, msgspec.Struct)]
        return cls(
            frozenset(plain) - frozenset(sections) - {NoneType},
            lists[0] if lists else None,
            sections[0] if sections else None,
        )

    def below(self, name: str | None) -> _Expected:
        """The types of a key of the section, or without a name, of an entry of the list."""
        if name is None:
            return _Expected.of(self.items)
        fields = msgspec.structs.fields(self.section) if self.section else ()
        return _Expected.of(next((f.type for f in fields if f.encode_name == name), None))

    def accepts(self, value: object) -> bool:
        return type(value) in self.plain

    @property
    def remedy(self) -> str:
        if self.section is not None:
            keys = ", ".join(f.encode_name for f in msgspec.structs.fields(self.section))
            return f"use a section with these keys: {keys}"
        return f"use {_join_with_or(self._type_names())}"

    def _type_names(self) -> Iterator[str]:
        if bool in self.plain:
            yield "true or false"
        if str in self.plain:
            yield "a string"
        if float in self.plain:
            yield "a number"
        elif int in self.plain:
            yield "a whole number"
        if self.items is not None:
            yield "a list"


def _hints(expected: _Expected, value: object) -> Iterator[str]:
    if isinstance(value, bool):
        words = "on or yes as true" if value else "off or no as false"
        yield f"YAML reads a bare {words}"
        if str in expected.plain:
            yield "put the word in quotes"
    elif isinstance(value, str):
        yield from _hints_for_text(expected, value)
    elif isinstance(value, int | float) and str in expected.plain:
        yield f'put it in quotes: "{value}"'
    elif isinstance(value, list):
        if expected.section is not None:
            yield "remove the dashes or brackets of the list"
        elif len(value) == 1 and expected.accepts(value[0]):
            yield f"write {_as_yaml(value[0])} without the list"
    if expected.items is not None and isinstance(value, dict):
        yield "start each entry with a dash"
    elif expected.items is not None and _Expected.of(expected.items).accepts(value):
        yield f"for a list of one, write [{_as_yaml(value)}]"


def _hints_for_text(expected: _Expected, text: str) -> Iterator[str]:
    if int in expected.plain and _WHOLE_NUMBER.fullmatch(text.strip()):
        yield f"write {int(text)} without quotes"
    if bool in expected.plain:
        wanted = parse_boolean(text.strip())
        word = text.strip().lower()
        if wanted is None and word in _TRUE_WORDS | _FALSE_WORDS:
            wanted = word in _TRUE_WORDS
        if wanted is not None:
            yield f"write {str(wanted).lower()} without quotes"


def _as_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _members(kind: object) -> Iterable[object]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _value_in(value: object, step: str | int) -> object:
    if isinstance(value, dict):
        return value.get(step)
    return value[step] if isinstance(value, list) and isinstance(step, int) else None


def _kind_of(value: object) -> str:
    return "a list" if isinstance(value, list) else f"the single value {value!r}"


def _join_with_or(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
