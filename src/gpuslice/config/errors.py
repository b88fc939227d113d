"""The error for invalid settings."""

from __future__ import annotations

import json
from pathlib import Path

from gpuslice.codes import Code

_LONGEST_VALUE = 200


class ConfigError(ValueError):
    """Names the field, its value and the remedy, and for a key of a file also the file."""

    code = Code.CONFIGURATION_INVALID

    def __init__(self, field: str, value: object, remedy: str, file: Path | None = None) -> None:
        where = field if file is None else f"{file}: {field}"
        super().__init__(_encodable(f"{where}: {_shorten(value)} is not valid: {remedy}"))
        self.field = field
        self.value = value
        self.remedy = remedy


def _encodable(text: str) -> str:
    """Logs and events are UTF-8, which has no halves of characters."""
    return text.encode(errors="backslashreplace").decode()


def _shorten(value: object) -> str:
    text = _render(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _render(value: object) -> str:
    """As in a file, but strings always have quotes, which show spaces at their ends."""
    if value is None or isinstance(value, bool | list | tuple | dict):
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            pass  # YAML has more than JSON, for example dates and lists that contain themselves
    return repr(value)
