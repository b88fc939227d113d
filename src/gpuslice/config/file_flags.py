"""What the file says of settings that have a flag too: the text that the flag would have."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpuslice.config.file_schema import ConfigFile
from gpuslice.config.option import Kind, Option
from gpuslice.config.option_values import OptionValue


def file_texts(file: ConfigFile, options: Iterable[Option]) -> dict[str, OptionValue]:
    document = msgspec.to_builtins(file)
    texts = {option: _text(option, _at(document, option.key)) for option in options if option.key}
    return {
        option.name: OptionValue(text, option.key)
        for option, text in texts.items()
        if text is not None
    }


def file_value(file: ConfigFile, key: str) -> object:
    """What stands in the file at this key; None: nothing."""
    return _at(msgspec.to_builtins(file), key)


def _at(document: object, key: str) -> object:
    for part in key.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(part)
    return document


def _text(option: Option, value: object) -> str | None:
    """As the flag would have it; the comma tells a list of one device from a number of devices."""
    if value is None:
        return None
    if isinstance(value, bool):
        words = ("false" if option.kind is Kind.SWITCH else "off", "true")
        return words[value]
    if isinstance(value, list | tuple):
        return "".join(f"{item}," for item in value)
    return str(value)
