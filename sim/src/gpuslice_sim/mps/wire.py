"""The lines that clients, the command line and the daemon exchange over the control socket.

A line contains a verb and `key=value` words. Spaces in values are percent-encoded, so that a client
in C needs no parser. A connection starts with `client …` or `command …`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LINE = 65536


@dataclass(frozen=True)
class Line:
    verb: str
    fields: dict[str, str] = field(default_factory=dict)

    def get(self, key: str) -> str | None:
        """The value of a key. `-` means none."""
        value = self.fields.get(key)
        return None if value in (None, "-") else value


def encode(verb: str, **fields: object) -> bytes:
    words = [f"{key}={'-' if value is None else _escape(value)}" for key, value in fields.items()]
    return (" ".join([verb, *words]) + "\n").encode()


def decode(line: bytes) -> Line:
    verb, *words = line.decode(errors="replace").split(" ")
    pairs = (word.partition("=") for word in words)
    return Line(verb, {key: _unescape(value) for key, _, value in pairs})


class LineBuffer:
    """Splits a stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise ValueError(f"a line is longer than {MAX_LINE} bytes")
        return lines


def _escape(value: object) -> str:
    return str(value).replace("%", "%25").replace(" ", "%20").replace("\n", "%0A")


def _unescape(value: str) -> str:
    return value.replace("%20", " ").replace("%0A", "\n").replace("%25", "%")
