"""What can go wrong with labels. Messages are for the operator of the node."""

from __future__ import annotations


class LabelsError(Exception):
    """Base of all errors of this package."""


class NodeUnreadable(LabelsError):
    """The hardware cannot be described."""


class PublishError(LabelsError):
    """The labels did not reach the place where they are read."""
