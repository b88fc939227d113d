"""What keeps a program of the node from doing its work."""

from __future__ import annotations

import errno

from gpuslice.codes import Code

_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class ProgramError(Exception):
    """The program cannot go on, or cannot apply new settings; the message states the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        # Something hangs that the end of the process must not wait for.
        self.at_once = False


def unreadable(error: OSError) -> ProgramError:
    """A file of the node cannot be read now."""
    if error.errno in _TOO_MANY_OPEN:
        return ProgramError(
            Code.TOO_FEW_DESCRIPTORS,
            f"no more files can be opened ({error}): raise the limit of open files, or find out "
            "what opens so many (/proc/PID/fd)",
        )
    return ProgramError(Code.NODE_UNREADABLE, f"the node cannot be read ({error})")


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
