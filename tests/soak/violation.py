"""What a soak must never see."""

from __future__ import annotations


class Violation(Exception):
    """Something is wrong that must never be."""
