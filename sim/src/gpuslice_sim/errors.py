"""What can go wrong when a node is made or changed."""

from __future__ import annotations


class SimError(Exception):
    """A wish that the simulation cannot fulfil; the message names value and remedy."""
