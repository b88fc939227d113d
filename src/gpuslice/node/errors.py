"""What keeps a program of the node from doing its work."""

from __future__ import annotations

from gpuslice.codes import Code


class ProgramError(Exception):
    """The program cannot go on, or cannot apply new settings; the message states the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        # Something hangs that the end of the process must not wait for.
        self.at_once = False


class NoGpus(Exception):
    """The node has no GPU that can be used now; the message states why."""

    code = Code.NO_GPUS


class NoDriver(NoGpus):
    """There is no driver."""

    code = Code.NO_DRIVER


class DriverFailed(NoGpus):
    """There is a driver, and it does not list its GPUs."""

    code = Code.DRIVER_FAILED


class DriverNotResponding(DriverFailed):
    """A call of the driver has not returned. It may return later."""

    code = Code.DRIVER_NOT_RESPONDING


class DriverReplaced(Exception):
    """Another driver is loaded now, and this process keeps the library of the old one."""

    code = Code.DRIVER_REPLACED
