"""Errors of creating and changing nodes."""

from __future__ import annotations


class SimError(Exception):
    """The simulation cannot do what is requested. The message names the value and the remedy."""
