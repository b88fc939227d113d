"""Option values from flags, environment variables and the file, and their conversion to types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option
from gpuslice.config.value_parsers import parse_boolean, parse_choice, split_list

_E = TypeVar("_E", bound=Enum)


@dataclass(frozen=True, slots=True)
class OptionValue:
    text: str
    # The flag, environment variable or file key that sets the value, for error messages.
    source: str
    # Only for a file key: the file, and the value as written in it.
    file: Path | None = None
    value_in_file: object = None


# By the name of the option.
OptionValues = Mapping[str, OptionValue]


def collect_option_values(
    flags: Mapping[str, str], environment: Mapping[str, str], options: Iterable[Option]
) -> OptionValues:
    """A flag takes precedence over an environment variable. An empty variable is ignored."""
    values: dict[str, OptionValue] = {}
    for option in options:
        if option.name in flags:
            values[option.name] = OptionValue(flags[option.name], option.name)
            continue
        variable = next((name for name in option.variables if environment.get(name)), None)
        if variable is not None:
            values[option.name] = OptionValue(environment[variable], variable)
    return values


class OptionReader:
    """Converts option values to types.

    Methods return the default, or None, for an option without a value. They raise ConfigError with
    the source of an invalid value.
    """

    def __init__(self, values: OptionValues) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> OptionValue | None:
        return self._values.get(name)

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name)
        return default if value is None else value.text

    def text_list(self, name: str) -> tuple[str, ...] | None:
        value = self._values.get(name)
        return None if value is None else split_list(value.text)

    def path(self, name: str) -> Path | None:
        """None for an empty text too."""
        text = self.text(name, "")
        return Path(text) if text else None

    def switch(self, name: str, default: bool) -> bool:  # noqa: FBT001 (the default of a switch)
        value = self._values.get(name)
        if value is None:
            return default
        found = parse_boolean(value.text)
        if found is None:
            raise ConfigError(value.source, value.text, "use true or false")
        return found

    def choice(self, name: str, default: _E) -> _E:
        value = self._values.get(name)
        return default if value is None else parse_choice(value.source, value.text, type(default))

    def choice_from(self, name: str, members: Sequence[_E]) -> _E | None:
        """For enumerations with members that are not valid for this option."""
        value = self._values.get(name)
        return None if value is None else parse_choice(value.source, value.text, members)

    def choices(self, name: str, kind: type[_E]) -> tuple[_E, ...] | None:
        value = self._values.get(name)
        if value is None:
            return None
        return tuple(parse_choice(value.source, word, kind) for word in split_list(value.text))


def with_source(error: ConfigError, values: OptionValues) -> ConfigError:
    """The same error, but it names the flag, variable or file key that sets the value.

    Settings are validated without their sources, so the error may name the option only.
    """
    value = values.get(error.field) or next(
        (value for value in values.values() if value.source == error.field), None
    )
    if value is None:
        return error
    if value.file is None:
        return ConfigError(value.source, error.value, error.remedy)
    return ConfigError(value.source, value.value_in_file, error.remedy, value.file)
