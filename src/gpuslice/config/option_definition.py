"""The definition of an option: its flag, environment variables, file key and help text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto


class OptionKind(Enum):
    TEXT = auto()
    NUMBER = auto()
    SWITCH = auto()  # true without a value
    LIST = auto()  # separated by commas, or a repeated flag
    VARIABLE = auto()  # an environment variable without a flag


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    help: str
    # For --help and the documentation; the value itself is the default of a setting.
    default: str = ""
    variables: tuple[str, ...] = ()
    kind: OptionKind = OptionKind.TEXT
    # The key in the configuration file, for example sharing.memory.unit.
    key: str = ""
    # Other names of the flag.
    aliases: tuple[str, ...] = ()

    @property
    def is_flag(self) -> bool:
        return self.kind is not OptionKind.VARIABLE


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options under one heading of --help."""

    title: str
    options: tuple[Option, ...]


def options_in(groups: Iterable[OptionGroup]) -> tuple[Option, ...]:
    return tuple(option for group in groups for option in group.options)
