"""Holds the driver open, reads the node and watches its health; all of it off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpuslice.agent.plan import Node
from gpuslice.config.settings import HealthSettings, Settings
from gpuslice.gpus.fingerprint import Fingerprint, changes, fingerprint, of_inventory
from gpuslice.gpus.health import HealthWatch, Trouble
from gpuslice.gpus.inventory import read_inventory
from gpuslice.gpus.library import find_nvml
from gpuslice.gpus.nvml import DriverUnavailable, Nvml, NvmlError
from gpuslice.gpus.pci import gpu_functions
from gpuslice.gpus.platform import Platform, detect, stand_in_inventory
from gpuslice.gpus.topology import read_topology
from gpuslice.slicing.topology import Topology

_T = TypeVar("_T")


class NoGpus(Exception):
    """Nothing can be offered; the text says why."""


class NoDriver(NoGpus):
    """Not even a driver is there to ask."""


class DriverReplaced(Exception):
    """The driver is another one now, and this process has the library of the old one for good."""


class Driver:
    """NVML enumerates at initialisation only, so every new look at the node opens it anew.

    Sessions of one process share a reference count: a second one beside the first would see what
    the first saw. So the old one ends before the new one begins, and an XID in between is lost.
    """

    def __init__(self) -> None:
        # A cancelled call goes on in its thread; the next one must not meet it half way.
        self._one_at_a_time = threading.Lock()
        self._nvml: Nvml | None = None
        self._watch: HealthWatch | None = None
        self._node: Node | None = None
        self._seen = Fingerprint()
        self._opened = False

    async def enumerate(self, settings: Settings) -> Node:
        """Raises NoGpus if there is no driver or no GPU that answers, and DriverReplaced."""
        return await self._in_turn(lambda: self._enumerate(settings))

    async def watch_health(
        self,
        settings: HealthSettings,
        report: Callable[[Trouble], None],
        note: Callable[[str], None],
    ) -> None:
        """`report` and `note` are called from another thread."""
        await self._in_turn(lambda: self._start_watch(settings, report, note))

    async def changes(self) -> tuple[str, ...]:
        """What a new look at the node would find different, in words."""
        return await self._in_turn(self._changes)

    async def read(self, read: Callable[[Nvml | None], _T]) -> _T:
        """For readers of the open driver."""
        return await self._in_turn(lambda: read(self._nvml))

    async def close(self) -> None:
        await self._in_turn(self._release)

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._one_at_a_time:
                return work()

        return await asyncio.to_thread(locked)

    def _enumerate(self, settings: Settings) -> Node:
        try:
            return self._look(settings)
        except OSError as error:  # files come and go while a driver is being replaced
            raise NoGpus(f"the node cannot be read ({error})") from error

    def _look(self, settings: Settings) -> Node:
        self._release()
        functions = gpu_functions(Path("/sys"))
        root = Path(settings.cdi.container_driver_root)
        failure: DriverUnavailable | None = None
        try:
            self._nvml = Nvml.open(find_nvml(root))
        except DriverUnavailable as error:
            if error.outdated and self._opened:
                raise DriverReplaced(
                    f"the driver was replaced ({error}): this process has to start anew"
                ) from error
            failure = error
        else:
            self._opened = True
        platform = detect(settings.discovery, root, self._nvml)
        if platform is not Platform.NVML:
            self._node = Node(stand_in_inventory(platform, self._nvml), Topology())
            return self._node
        if self._nvml is None:
            raise NoDriver(
                f"the NVIDIA driver cannot be used ({failure}): is this a GPU node with the driver "
                "installed, and does this container run with the nvidia runtime?"
            ) from failure
        return self._read(self._nvml, functions)

    def _read(self, nvml: Nvml, functions: Mapping[str, str]) -> Node:
        try:
            inventory = read_inventory(nvml)
            topology = read_topology(nvml, inventory.gpus)
            self._seen = replace(
                of_inventory(inventory, functions), awake=fingerprint(nvml, inventory).awake
            )
        except NvmlError as error:
            self._release()
            raise NoGpus(f"the NVIDIA driver cannot list its GPUs ({error})") from error
        if not inventory.gpus:
            self._release()
            left_out = "; ".join(f"GPU {g.index}: {g.reason}" for g in inventory.left_out)
            raise NoGpus(f"this node has no GPU to slice ({left_out or 'NVML finds none'})")
        self._node = Node(inventory, topology)
        return self._node

    def _start_watch(
        self,
        settings: HealthSettings,
        report: Callable[[Trouble], None],
        note: Callable[[str], None],
    ) -> None:
        if self._nvml is None or self._node is None:
            return
        if self._watch is not None:
            self._watch.stop()  # or it is stuck inside the driver, and stops when it gets out
        indices = {gpu.uuid: gpu.index for gpu in self._node.inventory.gpus}
        self._watch = HealthWatch(self._nvml, indices, report, settings, note)
        self._watch.start()

    def _changes(self) -> tuple[str, ...]:
        if self._nvml is None or self._node is None or not self._node.inventory.gpus:
            return ()
        return changes(self._seen, fingerprint(self._nvml, self._node.inventory))

    def _release(self) -> None:
        watch, self._watch = self._watch, None
        nvml, self._nvml = self._nvml, None
        self._node = None
        if watch is not None and not watch.stop():
            return  # stuck inside the driver, which must stay open under it
        if nvml is not None:
            # A driver that fails to close is as good as closed.
            with contextlib.suppress(NvmlError):
                nvml.close()
