"""Booleans in text, as Go reads them: NVIDIA's programs take these and no others."""

from __future__ import annotations

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def boolean(text: str) -> bool | None:
    """None: it is neither true nor false."""
    return text in _TRUE if text in _TRUE or text in _FALSE else None
