"""What can be wrong with the settings."""

from __future__ import annotations


class ConfigError(ValueError):
    """Names the field, its value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {value!r} is not valid: {remedy}")
