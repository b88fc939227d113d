"""What makes a GPU unusable."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuslice.codes import Code
from gpuslice.slicing.device import Device


def fault_of(device: Device, code: Code, message: str) -> Fault:
    """A fault of this device only: of a GPU as a whole, or of one MIG device."""
    mig = device.mig
    return Fault(
        code,
        message,
        device.gpu,
        mig.gpu_instance if mig else None,
        mig.compute_instance if mig else None,
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """`gpu` is None if every GPU of the node is affected, or the driver does not name one.

    If an instance is set, only MIG devices of that instance are affected.
    """

    code: Code
    message: str
    gpu: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    xid: int | None = None
    # Seconds since the epoch. The same fault at another time is the same fault.
    since: float = field(default=0.0, compare=False)

    def affects_gpu(self, uuid: str) -> bool:
        """A GPU as a whole is affected by the faults of all its parts."""
        return self.gpu in (None, uuid)

    def affects(self, device: Device) -> bool:
        if not self.affects_gpu(device.gpu):
            return False
        if device.mig is None:
            return True
        return self.gpu_instance in (None, device.mig.gpu_instance) and (
            self.compute_instance in (None, device.mig.compute_instance)
        )
