"""One option, described once for every command line, for the environment and the file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    TEXT = auto()
    SWITCH = auto()  # true when it stands alone
    LIST = auto()  # separated by commas, or given several times
    VARIABLE = auto()  # only an environment variable, no flag


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    help: str
    # As people read it.
    default: str = ""
    variables: tuple[str, ...] = ()
    kind: Kind = Kind.TEXT
    # Where the file has it.
    key: str = ""
    # Further names of the flag.
    aliases: tuple[str, ...] = ()

    @property
    def is_flag(self) -> bool:
        return self.kind is not Kind.VARIABLE

    @property
    def explained(self) -> str:
        return f"{self.help} (default: {self.default})" if self.default else self.help
