"""Holds the driver open, reads the inventory and watches health; all of it off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuslice.gpus.health import HealthWatch, Trouble
from gpuslice.gpus.inventory import Inventory, read_inventory
from gpuslice.gpus.nvml import DriverUnavailable, Nvml, NvmlError


class NoGpus(Exception):
    """Nothing can be offered; the text says why."""


class Driver:
    """NVML enumerates at initialisation only, so every new look at the node opens it anew."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._watch: HealthWatch | None = None

    async def enumerate(self) -> Inventory:
        """Raises NoGpus if there is no driver or no GPU that can be sliced."""
        return await asyncio.to_thread(self._enumerate)

    async def watch_health(self, inventory: Inventory, report: Callable[[Trouble], None]) -> None:
        """`report` is called from another thread."""
        await asyncio.to_thread(self._start_watch, inventory, report)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _enumerate(self) -> Inventory:
        self._close()
        try:
            self._nvml = Nvml.open()
            inventory = read_inventory(self._nvml)
        except DriverUnavailable as error:
            raise NoGpus(
                f"the NVIDIA driver cannot be used ({error}): is this a GPU node with the driver "
                "installed, and does this container run with the nvidia runtime?"
            ) from error
        except NvmlError as error:
            self._close()
            raise NoGpus(f"the NVIDIA driver cannot list its GPUs ({error})") from error
        if not inventory.gpus:
            self._close()
            left_out = "; ".join(f"GPU {g.index}: {g.reason}" for g in inventory.left_out)
            raise NoGpus(f"this node has no GPU to slice ({left_out or 'NVML finds none'})")
        return inventory

    def _start_watch(self, inventory: Inventory, report: Callable[[Trouble], None]) -> None:
        if self._nvml is None:
            raise RuntimeError("enumerate first")
        indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
        self._watch = HealthWatch(self._nvml, indices, report)
        self._watch.start()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
