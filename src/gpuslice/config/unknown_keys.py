"""Unknown keys of the file: found, explained and left out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import get_args, get_origin

import msgspec


def without_unknown(
    document: object, section: type[msgspec.Struct]
) -> tuple[object, tuple[str, ...]]:
    """The document without the keys that the section does not have, and a sentence for each.

    A key without a value (`sharing:`) says nothing and is left out as well, unless it is a section
    that counts by being there (`memory:`).
    """
    unknown: list[str] = []
    known = _clean(document, section, "", section, unknown)
    return known, tuple(unknown)


def all_paths(section: type[msgspec.Struct], above: str = "") -> Iterator[str]:
    """Every key with the sections above it, lists of sections included."""
    for field in msgspec.structs.fields(section):
        path = _join(above, field.encode_name)
        yield path
        inner = _section_of(field.type)
        if inner is not None:
            yield from all_paths(inner, path)


def _clean(
    value: object,
    section: type[msgspec.Struct],
    path: str,
    root: type[msgspec.Struct],
    unknown: list[str],
) -> object:
    if isinstance(value, list):
        return [
            _clean(item, section, f"{path}[{position}]", root, unknown)
            for position, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    fields = {field.encode_name: field for field in msgspec.structs.fields(section)}
    known: dict[str, object] = {}
    for key, item in value.items():
        if key not in fields:
            unknown.append(_explain(str(key), path, list(fields), root))
            continue
        inner = _section_of(fields[key].type)
        if item is not None:
            place = _join(path, key)
            known[key] = item if inner is None else _clean(item, inner, place, root, unknown)
        elif inner is not None and fields[key].default is None:
            known[key] = {}
    return known


def _explain(key: str, path: str, siblings: list[str], root: type[msgspec.Struct]) -> str:
    said = f"unknown key `{_join(path, key)}`"
    elsewhere = [place for place in all_paths(root) if _same(place.rpartition(".")[2], key)]
    here = _nearest(key, siblings)
    if here is not None and _same(here, key):
        return f"{said}; did you mean `{here}`?"
    if elsewhere:
        return f"{said}; it belongs at `{'` or `'.join(elsewhere)}`"
    anywhere = _nearest(key, [place.rpartition(".")[2] for place in all_paths(root)])
    near = here or anywhere
    return f"{said}; did you mean `{near}`?" if near else f"{said}; remove it"


def _nearest(key: str, names: list[str]) -> str | None:
    """Upper and lower case aside, in which people differ most."""
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _section_of(kind: object) -> type[msgspec.Struct] | None:
    """The section within `Section | None` or `tuple[Section, ...]`."""
    if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, msgspec.Struct):
        return kind
    return next(filter(None, map(_section_of, get_args(kind))), None)


def _join(above: str, key: str) -> str:
    return f"{above}.{key}" if above else key
