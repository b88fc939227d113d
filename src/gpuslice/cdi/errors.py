"""What can go wrong with CDI specifications."""

from __future__ import annotations


class CdiError(Exception):
    """Containers cannot get devices by CDI; the message says what an operator can do."""
