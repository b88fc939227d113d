"""Keeps NVML open, enumerates GPUs and watches their health, all of it off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from gpuslice.config.settings import HealthSettings, Settings
from gpuslice.config.timing import Timing
from gpuslice.gpus.fingerprint import Fingerprint, changes, fingerprint, of_inventory
from gpuslice.gpus.health import HealthReporter, HealthWatch
from gpuslice.gpus.inventory import Inventory, Platform, read_inventory
from gpuslice.gpus.library import find_nvml
from gpuslice.gpus.nvml import DriverUnavailable, Nvml, NvmlError
from gpuslice.gpus.pci import gpu_functions
from gpuslice.gpus.platform import detect, placeholder_inventory
from gpuslice.gpus.topology import read_topology
from gpuslice.node.errors import DriverFailed, DriverReplaced, NoDriver, NoGpus
from gpuslice.slicing.topology import Topology

_T = TypeVar("_T")


@dataclass(frozen=True)
class Hardware:
    """What a node has, independent of the settings that decide how it is advertised."""

    inventory: Inventory
    topology: Topology = field(default_factory=Topology)


class Driver:
    """NVML enumerates at initialisation only, so every enumeration reopens it.

    Sessions of one process share a reference count: a second session would see the GPUs of the
    first. So the old one ends before the new one begins, and an XID in between is lost.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        # A cancelled call continues in its thread; the next one must not run at the same time.
        self._one_at_a_time = threading.Lock()
        self._nvml: Nvml | None = None
        self._hardware: Hardware | None = None
        self._fingerprint = Fingerprint()
        self._was_open = False
        self._watch: HealthWatch | None = None
        self._watch_wanted: tuple[HealthSettings, HealthReporter] | None = None

    async def enumerate(self, settings: Settings) -> Hardware:
        """Raises NoGpus if there is no driver or no GPU that answers, and DriverReplaced.

        A health watch continues on the GPUs that are found.
        """
        return await self._in_turn(lambda: self._enumerate(settings))

    async def watch_health(self, settings: HealthSettings, reporter: HealthReporter) -> None:
        """From now on, across enumerations. `reporter` is called from other threads."""
        await self._in_turn(lambda: self._set_watch(settings, reporter))

    async def changes(self) -> tuple[str, ...]:
        """What a new enumeration would find changed, in words."""
        return await self._in_turn(self._changes)

    async def read(self, read: Callable[[Nvml | None], _T]) -> _T:
        """Reads from the open driver; None: it is not open."""
        return await self._in_turn(lambda: read(self._nvml))

    async def close(self) -> None:
        await self._in_turn(self._release)

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._one_at_a_time:
                return work()

        return await asyncio.to_thread(locked)

    def _enumerate(self, settings: Settings) -> Hardware:
        try:
            self._hardware = self._read_hardware(settings)
        except OSError as error:  # files come and go while a driver is being replaced
            raise DriverFailed(f"the node cannot be read ({error})") from error
        # At once: nothing has watched the GPUs since the driver was closed.
        self._start_watch()
        return self._hardware

    def _read_hardware(self, settings: Settings) -> Hardware:
        self._release()
        functions = gpu_functions(Path("/sys"))
        root = Path(settings.cdi.container_driver_root)
        failure: DriverUnavailable | None = None
        try:
            self._nvml = Nvml.open(find_nvml(root))
        except DriverUnavailable as error:
            if error.outdated and self._was_open:
                raise DriverReplaced(
                    f"the driver was replaced ({error}): this process must restart"
                ) from error
            failure = error
        else:
            self._was_open = True
        platform = detect(settings.discovery, root, self._nvml)
        if platform is not Platform.NVML:
            return Hardware(placeholder_inventory(platform, self._nvml))
        if self._nvml is None:
            raise NoDriver(
                f"the NVIDIA driver cannot be used ({failure}): install the driver on this node, "
                "and run this container with the nvidia runtime"
            ) from failure
        return self._read_gpus(self._nvml, functions)

    def _read_gpus(self, nvml: Nvml, functions: Mapping[str, str]) -> Hardware:
        try:
            inventory = read_inventory(nvml)
            topology = read_topology(nvml, inventory.gpus)
            self._fingerprint = replace(
                of_inventory(inventory, functions), recovered=fingerprint(nvml, inventory).recovered
            )
        except NvmlError as error:
            self._release()
            raise DriverFailed(f"the NVIDIA driver cannot list its GPUs ({error})") from error
        if not inventory.gpus:
            self._release()
            reasons = "; ".join(f"GPU {one.index}: {one.reason}" for one in inventory.skipped)
            raise NoGpus(f"this node has no GPU to advertise ({reasons or 'NVML finds none'})")
        return Hardware(inventory, topology)

    def _set_watch(self, settings: HealthSettings, reporter: HealthReporter) -> None:
        self._watch_wanted = settings, reporter
        self._start_watch()

    def _start_watch(self) -> None:
        if self._nvml is None or self._hardware is None or self._watch_wanted is None:
            return
        if self._watch is not None:
            self._watch.stop()  # if it hangs inside the driver, it stops when the call returns
        indices = {gpu.uuid: gpu.index for gpu in self._hardware.inventory.gpus}
        self._watch = HealthWatch(self._nvml, indices, *self._watch_wanted, self._timing)
        self._watch.start()

    def _changes(self) -> tuple[str, ...]:
        if self._nvml is None or self._hardware is None or not self._hardware.inventory.gpus:
            return ()
        return changes(self._fingerprint, fingerprint(self._nvml, self._hardware.inventory))

    def _release(self) -> None:
        watch, self._watch = self._watch, None
        nvml, self._nvml = self._nvml, None
        self._hardware = None
        if watch is not None and not watch.stop():
            return  # it hangs inside the driver, which must stay open
        if nvml is not None:
            # A driver that fails to close is as good as closed.
            with contextlib.suppress(NvmlError):
                nvml.close()
