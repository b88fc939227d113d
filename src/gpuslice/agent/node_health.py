"""Which GPUs and MIG devices are in trouble: one memory for all resources of the node."""

from __future__ import annotations

from collections.abc import Collection

from gpuslice.gpus.health import Cause, Trouble
from gpuslice.slicing.device import Device


class NodeHealth:
    """Troubles stay until something clears them; a lost GPU does not come back by silence."""

    def __init__(self) -> None:
        self._troubles: set[Trouble] = set()
        self._suspended = False

    def suspend(self) -> None:
        """Nothing on offer can be trusted until the node has been read again."""
        self._suspended = True

    def resume(self) -> None:
        self._suspended = False

    def add(self, trouble: Trouble) -> bool:
        """Returns whether it is news: a broken GPU may say so again and again."""
        news = trouble not in self._troubles
        self._troubles.add(trouble)
        return news

    def clear(self) -> None:
        """The driver was asked anew; what is still wrong will be reported anew."""
        self._troubles.clear()

    def begin_watch(self) -> None:
        """Whoever watches from here on says what still cannot be watched."""
        self._troubles = {t for t in self._troubles if t.cause is not Cause.UNWATCHED}

    def forget_absent(self, present: Collection[str]) -> None:
        """A GPU that left the node and comes back is a new one."""
        self._troubles = {t for t in self._troubles if t.uuid is None or t.uuid in present}

    def healthy_gpu(self, uuid: str) -> bool:
        """A GPU as a whole is as healthy as its worst part."""
        return not self._suspended and not any(t.uuid in (None, uuid) for t in self._troubles)

    def healthy(self, device: Device) -> bool:
        if device.mig is None:
            return self.healthy_gpu(device.gpu)
        return not self._suspended and not any(_strikes(t, device) for t in self._troubles)


def _strikes(trouble: Trouble, device: Device) -> bool:
    """Each part of a MIG device's address counts only where the driver gave it."""
    if trouble.uuid not in (None, device.gpu) or device.mig is None:
        return False
    return trouble.gpu_instance in (None, device.mig.gpu_instance) and (
        trouble.compute_instance in (None, device.mig.compute_instance)
    )
