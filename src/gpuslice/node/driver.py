"""Keeps NVML open, enumerates GPUs and watches their health, all of it off the event loop.

No call of the driver stops anything here: each has a time limit, and one that does not return is a
fault until it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from gpuslice.codes import Code
from gpuslice.config.settings import HealthSettings, Settings
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.fingerprint import Fingerprint, changes, fingerprint, of_inventory
from gpuslice.gpus.health import HealthReporter, HealthWatch
from gpuslice.gpus.inventory import Inventory, Platform, read_inventory
from gpuslice.gpus.library import find_nvml
from gpuslice.gpus.nvml import (
    DriverHangs,
    DriverUnavailable,
    LimitedCalls,
    Limits,
    Nvml,
    NvmlError,
    Subject,
)
from gpuslice.gpus.pci import gpu_functions
from gpuslice.gpus.platform import detect, placeholder_inventory
from gpuslice.gpus.topology import read_topology
from gpuslice.node.driver_thread import DriverThread
from gpuslice.node.errors import (
    DriverFailed,
    DriverNotResponding,
    DriverReplaced,
    NoDriver,
    NoGpus,
    unreadable,
)
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
    first. So the old one ends before the new one begins, and an XID in between is lost. While a
    call hangs, the driver stays open: closing it would pull the ground from under that call.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._thread = DriverThread()
        limits = Limits(timing.driver_answer, timing.driver_open)
        self._calls = LimitedCalls(limits, self._hangs_changed)
        self._report_hangs: Callable[[], None] = _nothing
        # The calls that hang, and those that hung since the last enumeration: a GPU is watched only
        # after the next one.
        self._hung: dict[Subject, str] = {}
        self._hung_lock = threading.Lock()
        # UUIDs by index, as they were enumerated last.
        self._uuids: Mapping[int, str] = {}
        self._nvml: Nvml | None = None
        self._hardware: Hardware | None = None
        self._fingerprint = Fingerprint()
        self._was_open = False
        self._watch: HealthWatch | None = None
        self._watch_wanted: tuple[HealthSettings, HealthReporter] | None = None

    async def enumerate(self, settings: Settings) -> Hardware:
        """Raises NoGpus if there is no driver or no GPU that answers, and DriverReplaced.

        Raises DriverNotResponding, a NoGpus, while the driver hangs. A GPU that hangs is skipped.
        A health watch continues on the GPUs that are found.
        """
        return await self._thread.run(lambda: self._enumerate(settings))

    async def watch_health(self, settings: HealthSettings, reporter: HealthReporter) -> None:
        """From now on, across enumerations. `reporter` is called from other threads."""
        await self._thread.run(lambda: self._set_watch(settings, reporter))

    async def changes(self) -> tuple[str, ...]:
        """What a new enumeration would find changed, in words."""
        return await self._thread.run(self._changes)

    async def read(self, read: Callable[[Nvml | None], _T]) -> _T:
        """Reads from the open driver; None: it is not open. Raises DriverNotResponding."""
        return await self._thread.run(lambda: self._read(read))

    async def close(self) -> None:
        """Waits for a moment only: a driver that hangs is closed by the end of the process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.driver_close):
                await self._thread.run(self._release)

    # Calls that hang

    def report_hangs(self, changed: Callable[[], None]) -> None:
        """`changed` is called from any thread."""
        self._report_hangs = changed

    def hanging(self) -> frozenset[Subject]:
        """The GPUs, by index, and the driver as a whole (None) with a call that hangs."""
        return frozenset(self._calls.hanging())

    def is_busy(self) -> bool:
        """Whether a thread is inside the driver now, however long."""
        return self._calls.busy()

    def hang_faults(self) -> tuple[Fault, ...]:
        """A GPU that is not enumerated yet has no fault: nothing of it is advertised."""
        hung = dict(self._hung)
        if None in hung:
            return (_hang_fault(hung[None], None),)
        found = ((name, self._uuids.get(index or 0)) for index, name in hung.items())
        return tuple(_hang_fault(name, uuid) for name, uuid in found if uuid is not None)

    def _hangs_changed(self) -> None:
        """In any thread."""
        with self._hung_lock:
            self._hung = self._calls.hanging() | self._hung
        self._report_hangs()

    def _enumerated(self) -> None:
        with self._hung_lock:
            was_hung, self._hung = bool(self._hung), self._calls.hanging()
        if was_hung:
            self._report_hangs()

    def _check_answers(self) -> None:
        """Raises DriverNotResponding."""
        name = self._calls.hanging().get(None)
        if name is not None:
            raise DriverNotResponding(_hang_message(name))

    def _enumerate(self, settings: Settings) -> Hardware:
        self._check_answers()
        try:
            self._hardware = self._read_hardware(settings)
        except DriverHangs as error:
            raise DriverNotResponding(f"the driver does not answer ({error})") from error
        except OSError as error:  # files come and go while a driver is being replaced
            cause = unreadable(error)
            problem = DriverFailed(str(cause))
            problem.code = cause.code
            raise problem from error
        self._uuids = {gpu.index: gpu.uuid for gpu in self._hardware.inventory.gpus} | {
            index: uuid for index, uuid in self._uuids.items() if index in self.hanging()
        }
        # At once: nothing has watched the GPUs since the driver was closed.
        self._start_watch()
        self._enumerated()
        return self._hardware

    def _read_hardware(self, settings: Settings) -> Hardware:
        self._release()
        functions = gpu_functions(Path("/sys"))
        root = Path(settings.cdi.container_driver_root)
        failure: DriverUnavailable | None = None
        try:
            self._nvml = Nvml.open(find_nvml(root), self._calls)
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
        except DriverHangs:
            raise
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
        try:
            # First, so that a driver that hangs is found at once and not GPU by GPU.
            self._nvml.count()
        except NvmlError:
            return ()
        return changes(self._fingerprint, fingerprint(self._nvml, self._hardware.inventory))

    def _read(self, read: Callable[[Nvml | None], _T]) -> _T:
        self._check_answers()
        return read(self._nvml)

    def _release(self) -> None:
        watch, self._watch = self._watch, None
        nvml, self._nvml = self._nvml, None
        self._hardware = None
        ended = watch is None or watch.stop()
        if nvml is not None and ended and not self.hanging():
            # A driver that fails to close is as good as closed.
            with contextlib.suppress(NvmlError):
                nvml.close()


def _hang_fault(name: str, uuid: str | None) -> Fault:
    return Fault(Code.DRIVER_NOT_RESPONDING, _hang_message(name), uuid)


def _hang_message(name: str) -> str:
    return f"the driver does not answer: {name} has not returned"


def _nothing() -> None:
    """Nobody is interested in calls that hang."""
