"""What flags, variables and the file say: text by the name of its option, read as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from gpuslice.config.booleans import boolean
from gpuslice.config.errors import ConfigError
from gpuslice.config.option import Option

_E = TypeVar("_E", bound=Enum)


@dataclass(frozen=True, slots=True)
class OptionValue:
    """`source` is who said it, as errors name it: an option, a variable or a key of the file."""

    text: str
    source: str


OptionValues = Mapping[str, OptionValue]


def collect_options(
    flags: Mapping[str, str], environment: Mapping[str, str], options: Iterable[Option]
) -> OptionValues:
    """A flag wins over a variable; a variable without a value says nothing."""
    given: dict[str, OptionValue] = {}
    for option in options:
        if option.name in flags:
            given[option.name] = OptionValue(flags[option.name], option.name)
            continue
        variable = next((name for name in option.variables if environment.get(name)), None)
        if variable is not None:
            given[option.name] = OptionValue(environment[variable], variable)
    return given


class OptionReader:
    """Each reader gives the default where nobody spoke, and names the source of a wrong text."""

    def __init__(self, given: OptionValues) -> None:
        self._given = given

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def said(self, name: str) -> OptionValue | None:
        return self._given.get(name)

    def text(self, name: str, default: str) -> str:
        said = self._given.get(name)
        return default if said is None else said.text

    def switch(self, name: str, default: bool) -> bool:  # noqa: FBT001 (the default of a switch)
        said = self._given.get(name)
        if said is None:
            return default
        value = boolean(said.text)
        if value is None:
            raise ConfigError(said.source, said.text, "use true or false")
        return value

    def choice(self, name: str, default: _E) -> _E:
        said = self._given.get(name)
        return default if said is None else _choose(said.source, said.text, type(default))

    def one_of(self, name: str, members: Sequence[_E]) -> _E | None:
        """Where not every member of the enumeration can be chosen."""
        said = self._given.get(name)
        return None if said is None else _choose(said.source, said.text, members)

    def choices(self, name: str, kind: type[_E]) -> tuple[_E, ...] | None:
        said = self._given.get(name)
        if said is None:
            return None
        return tuple(_choose(said.source, part, kind) for part in parts(said.text))

    def listed(self, name: str) -> tuple[str, ...] | None:
        said = self._given.get(name)
        return None if said is None else parts(said.text)


def with_source(error: ConfigError, given: OptionValues) -> ConfigError:
    """The same, named by who said it: checks of settings know options only."""
    said = given.get(error.field)
    return error if said is None else ConfigError(said.source, error.value, error.remedy)


def parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _choose(source: str, text: str, members: Iterable[_E]) -> _E:
    by_name = {str(member.value): member for member in members}
    if text not in by_name:
        raise ConfigError(source, text, f"choose one of {', '.join(by_name)}")
    return by_name[text]
