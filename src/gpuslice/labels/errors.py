"""Errors of feature discovery. Messages are for the operator of the node."""

from __future__ import annotations


class LabelsError(Exception):
    """Base of all errors of this package."""


class NodeUnreadable(LabelsError):
    """The GPUs of the node cannot be read."""


class PublishError(LabelsError):
    """The labels cannot be published."""
