"""Keys and values that the API server accepts, whatever the hardware calls itself."""

from __future__ import annotations

import hashlib
import re

NVIDIA = "nvidia.com"
OWN_DOMAIN = "gpuslice.io"

# Of a value, and of a key behind its slash.
LONGEST = 63
_DROPPED = re.compile(r"[^A-Za-z0-9\-_. ]")
_DIGEST = 8


def words(text: str) -> str:
    """Words joined by dashes, without the characters that no label may have."""
    return "-".join(_DROPPED.sub("", text).split())


def value(text: str) -> str:
    """As much of the text as a label may hold. One such value would spoil all labels otherwise."""
    return _ends_trimmed(words(text)[:LONGEST])


def product(model: str, *more: str) -> str:
    """The model and what was made of it. A long model gives way: its end tells least."""
    tail = "".join(f"-{word}" for word in more)
    return _ends_trimmed(_ends_trimmed(words(model)[: LONGEST - len(tail)]) + tail)


def key_part(text: str, room: int) -> str:
    """A name within a key. Where it is cut, a digest keeps it apart from others cut alike."""
    name = _ends_trimmed(words(text.replace("/", "_")))
    if len(name) <= room:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: room - _DIGEST - 1]}-{digest}"


def _ends_trimmed(text: str) -> str:
    return text.strip("-_.")
