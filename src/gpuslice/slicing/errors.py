"""What can be wrong with a rule or a request. Messages are for users of pods and of nodes."""

from __future__ import annotations

from gpuslice.codes import Code


class SlicingError(ValueError):
    """Base of all errors of this package."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class NothingToAdvertise(SlicingError):
    """No GPU can be advertised. More or other GPUs may change that."""

    def __init__(self, message: str, code: Code = Code.NOTHING_TO_ADVERTISE) -> None:
        super().__init__(code, message)


class GrantRefused(SlicingError):
    """The kubelet requests devices that a container cannot get together, or at all."""
