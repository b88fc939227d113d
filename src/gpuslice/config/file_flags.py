"""Keys of the configuration file that also have a flag, as option values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpuslice.config.file_schema import ConfigFile
from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.option_values import OptionValue


def option_values_in_file(
    file: ConfigFile, path: Path, options: Iterable[Option]
) -> dict[str, OptionValue]:
    document = msgspec.to_builtins(file)
    found = {option: _value_at(document, option.key) for option in options if option.key}
    return {
        option.name: OptionValue(_as_flag(option, value), option.key, path, value)
        for option, value in found.items()
        if value is not None
    }


def _value_at(document: object, key: str) -> object:
    """None if the file does not have the key."""
    for name in key.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document


def _as_flag(option: Option, value: object) -> str:
    """The text that the flag would have. `[2]` becomes `2,`: `2` would be a number of devices."""
    if isinstance(value, bool):
        # YAML reads a bare `off` as false.
        words = ("false" if option.kind is OptionKind.SWITCH else "off", "true")
        return words[value]
    if isinstance(value, list | tuple):
        return "".join(f"{item}," for item in value)
    return str(value)
