"""Limits of a configuration file. Real ones are far below."""

from __future__ import annotations

from collections.abc import Iterator

MOST_VALUES = 20_000
DEEPEST = 32
LONGEST_TEXT = 4096

_LARGEST_NUMBER = 1 << 63


def check_document(document: object) -> None:
    """Raises ValueError, which names the key.

    For a document that was loaded from JSON or YAML: it has no cycles, but parts of it may be equal
    objects, so that it is larger than it seems.
    """
    pending = [("", document, 1)]
    seen = 0
    while pending:
        key, value, depth = pending.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        problem = _problem(value)
        if problem is not None:
            raise ValueError(f"{key or 'the file'}: {problem}")
        pending += ((inner, item, depth + 1) for inner, item in _items(key, value))


def _items(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, list):
        yield from ((f"{key}[{position}]", item) for position, item in enumerate(value))
    elif isinstance(value, dict):
        for name, item in value.items():
            problem = _problem(name)
            if problem is not None:
                raise ValueError(f"a key of {key or 'the file'}: {problem}")
            yield (f"{key}.{name}" if key else str(name)), item


def _problem(value: object) -> str | None:
    if isinstance(value, str):
        return _text_problem(value)
    if isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
        return "a number has at most 64 bits"
    return None


def _text_problem(text: str) -> str | None:
    if len(text) > LONGEST_TEXT:
        return f"the text has {len(text)} characters; use at most {LONGEST_TEXT}"
    if text.isprintable():
        return None
    strange = next((c for c in text if _is_strange(c)), None)
    return None if strange is None else f"remove the character {strange!r}"


def _is_strange(character: str) -> bool:
    """Control characters, and halves of characters, which cannot be encoded."""
    return character < " " or "\x7f" <= character < "\xa0" or "\ud800" <= character <= "\udfff"
