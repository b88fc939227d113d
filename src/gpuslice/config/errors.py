"""What can be wrong with the settings."""

from __future__ import annotations

import json
from pathlib import Path

_LONGEST_VALUE = 200


class ConfigError(ValueError):
    """Names the field, its value and the remedy, and the file where the field is a key of one."""

    def __init__(self, field: str, value: object, remedy: str, file: Path | None = None) -> None:
        place = field if file is None else f"{file}: {field}"
        super().__init__(f"{place}: {_shown(value)} is not valid: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


def _shown(value: object) -> str:
    text = _written(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _written(value: object) -> str:
    """As a file would have it, but for texts, whose ends must be seen."""
    if value is None or isinstance(value, bool | list | tuple | dict):
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            pass  # YAML knows more than JSON: dates, lists that contain themselves
    return repr(value)
