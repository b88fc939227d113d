"""What keeps a program of the node from doing its work."""

from __future__ import annotations


class ProgramError(Exception):
    """The program cannot go on, or cannot apply new settings; the message states the remedy."""


class NoGpus(Exception):
    """The node has no GPU that can be used now; the message states why."""


class NoDriver(NoGpus):
    """There is no driver."""


class DriverFailed(NoGpus):
    """There is a driver, and it does not list its GPUs."""


class DriverReplaced(Exception):
    """Another driver is loaded now, and this process keeps the library of the old one."""
