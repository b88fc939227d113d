"""Holds the driver open, reads the inventory and watches health; all of it off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from gpuslice.gpus.health import HealthWatch, Trouble
from gpuslice.gpus.inventory import Inventory, read_inventory
from gpuslice.gpus.nvml import DriverUnavailable, Nvml, NvmlError


class NoGpus(Exception):
    """Nothing can be offered; the text says why."""


class Driver:
    """NVML enumerates at initialisation only, so every new look at the node opens it anew."""

    def __init__(self) -> None:
        # A cancelled call goes on in its thread; the next one must not meet it half way.
        self._one_at_a_time = threading.Lock()
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
        with self._one_at_a_time:
            return self._open_and_read()

    def _open_and_read(self) -> Inventory:
        self._release()
        try:
            self._nvml = Nvml.open()
            inventory = read_inventory(self._nvml)
        except DriverUnavailable as error:
            raise NoGpus(
                f"the NVIDIA driver cannot be used ({error}): is this a GPU node with the driver "
                "installed, and does this container run with the nvidia runtime?"
            ) from error
        except NvmlError as error:
            self._release()
            raise NoGpus(f"the NVIDIA driver cannot list its GPUs ({error})") from error
        if not inventory.gpus:
            self._release()
            left_out = "; ".join(f"GPU {g.index}: {g.reason}" for g in inventory.left_out)
            raise NoGpus(f"this node has no GPU to slice ({left_out or 'NVML finds none'})")
        return inventory

    def _start_watch(self, inventory: Inventory, report: Callable[[Trouble], None]) -> None:
        with self._one_at_a_time:
            if self._nvml is None:
                raise RuntimeError("enumerate first")
            indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
            self._watch = HealthWatch(self._nvml, indices, report)
            self._watch.start()

    def _close(self) -> None:
        with self._one_at_a_time:
            self._release()

    def _release(self) -> None:
        watch, self._watch = self._watch, None
        nvml, self._nvml = self._nvml, None
        if watch is not None and not watch.stop():
            return  # stuck inside the driver, which must stay open under it
        if nvml is not None:
            with contextlib.suppress(
                NvmlError
            ):  # a driver that fails to close is as good as closed
                nvml.close()
