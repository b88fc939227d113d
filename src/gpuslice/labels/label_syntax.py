"""Converts names of the hardware to keys and values that the API server accepts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

NVIDIA = "nvidia.com"
OWN_DOMAIN = "gpuslice.io"

# Characters of a value, and of a key after its slash.
LONGEST = 63
_DROPPED = re.compile(r"[^A-Za-z0-9\-_. ]")
_DIGEST = 8


def words(text: str) -> str:
    """Joins words by dashes, and drops characters that a label cannot contain."""
    return "-".join(_DROPPED.sub("", text).split())


def value(text: str) -> str:
    """Cuts the text if it is too long: one invalid value makes the API server reject all labels."""
    return _trimmed(words(text)[:LONGEST])


def product(model: str, *more: str) -> str:
    """The model and its suffixes. A long model is cut, because its end matters least."""
    tail = "".join(f"-{word}" for word in more)
    return _trimmed(_trimmed(words(model)[: LONGEST - len(tail)]) + tail)


def key_part(text: str, longest: int) -> str:
    """A name within a key. If it is cut, a digest distinguishes it from similar names."""
    name = _trimmed(words(text.replace("/", "_")))
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: longest - _DIGEST - 1]}-{digest}"


def with_prefix(prefix: str, labels: Mapping[str, object]) -> dict[str, str]:
    return {f"{prefix}{name}": str(content) for name, content in labels.items()}


def _trimmed(text: str) -> str:
    return text.strip("-_.")
