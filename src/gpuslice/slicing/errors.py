"""What can be wrong with a cut or a request. Messages are for the user of the pod or the node."""

from __future__ import annotations


class SlicingError(ValueError):
    """Base of all errors of this package."""


class TooManyDevices(SlicingError):
    """The list of devices would not fit into one message to the kubelet."""


class NothingToOffer(SlicingError):
    """No GPU yields a single unit."""


class GrantRefused(SlicingError):
    """These device ids do not make a slice."""
