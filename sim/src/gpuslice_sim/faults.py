"""Faults and other changes of a node while programs use it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from gpuslice_sim import profiles
from gpuslice_sim.errors import SimError
from gpuslice_sim.mig import layout_keys
from gpuslice_sim.state import Process, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice_sim.node import SimGpu, SimNode

Which = int | str  # an index, a UUID or a prefix of one


class Event(IntEnum):
    """NVML's event type bits."""

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    XID = 0x8
    RECOVERY_ACTION = 0x8000


class RecoveryAction(IntEnum):
    """What an operator must do before a GPU can be used again."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class NvmlError(IntEnum):
    """NVML return codes that simulated calls can return."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


_XID_RECOVERY_ACTION = 154
_XID_154_SINCE = 565
_EVENT_SINCE = 575


class Faults:
    """Each method takes effect at once in all processes that use the node."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def xid(self, gpu: Which, number: int, gi: int | None = None, ci: int | None = None) -> None:
        """An XID error event, for the whole GPU or for one MIG instance. Nothing else changes."""
        self.event(gpu, Event.XID, number, gi, ci)

    def event(
        self, gpu: Which, kind: int, data: int = 0, gi: int | None = None, ci: int | None = None
    ) -> None:
        self._node.state.add_event(self._node.gpu(gpu).index, int(kind), data, gi, ci)

    def lost(self, gpu: Which) -> None:
        """The GPU falls off the bus: its calls return GPU_IS_LOST."""
        self._set(gpu, {"lost": 1})

    def restore(self, gpu: Which) -> None:
        """Resets the GPU: reachable, no recovery action, no pending remap, volatile counts 0."""
        chosen = self._node.gpu(gpu)
        values: dict[str, Value] = {"lost": 0, "recovery_action": 0}
        values |= {f"ecc.{kind}.volatile": 0 for kind in ("corrected", "uncorrected")}
        values |= {f"ecc.sram.{kind}.volatile": 0 for kind in ("corrected", "uncorrected")}
        known = self._node.state.values()
        for key in ("remap.pending", "retired.pending"):
            if f"gpu.{chosen.index}.{key}" in known:
                values[key] = 0
        self._set(gpu, values)

    def ecc(
        self, gpu: Which, *, corrected: int = 0, uncorrected: int = 0, sram: bool = False
    ) -> None:
        """Adds memory errors. Each kind causes its event."""
        chosen = self._node.gpu(gpu)
        known = self._node.state.values()
        where = "ecc.sram" if sram else "ecc"
        changes: dict[str, Value] = {}
        for kind, more in (("corrected", corrected), ("uncorrected", uncorrected)):
            for counter in ("volatile", "aggregate") if more else ():
                key = f"{where}.{kind}.{counter}"
                changes[key] = int(known.get(f"gpu.{chosen.index}.{key}", "0")) + more
        if changes:
            self._set(gpu, changes)
        if corrected:
            self.event(gpu, Event.SINGLE_BIT_ECC)
        if uncorrected:
            self.event(gpu, Event.DOUBLE_BIT_ECC)

    def recovery_action(self, gpu: Which, action: int | str) -> None:
        """Sets field 230. A change causes XID 154 and an event, as with the driver."""
        chosen = self._node.gpu(gpu)
        wanted = _choose(RecoveryAction, "recovery action", action)
        values = self._node.state.values()
        changed = int(values.get(f"gpu.{chosen.index}.recovery_action", "0")) != wanted
        self._set(gpu, {"recovery_action": wanted})
        branch = int(values["driver.branch"])
        if changed and wanted and branch >= _XID_154_SINCE:
            self.xid(gpu, _XID_RECOVERY_ACTION)
        if changed and branch >= _EVENT_SINCE:
            self.event(gpu, Event.RECOVERY_ACTION, wanted)

    def remap_pending(self, gpu: Which, rows: int = 1) -> None:
        """Rows are remapped at the next reset. 0 clears it."""
        self._remap(gpu, {"remap.pending": 1 if rows else 0, "remap.uncorrected": rows})

    def remap_failure(self, gpu: Which) -> None:
        """A row cannot be remapped: the GPU is defective."""
        self._remap(gpu, {"remap.failure": 1})

    def utilization(self, gpu: Which, gpu_percent: int, memory_percent: int = 0) -> None:
        self._set(gpu, {"utilization.gpu": gpu_percent, "utilization.memory": memory_percent})

    def add_process(
        self,
        gpu: Which,
        pid: int,
        used_bytes: int,
        *,
        kind: str = "C",
        sm_percent: int = 0,
        memory_percent: int = 0,
        name: str = "",
        gi: int | None = None,
        ci: int | None = None,
        invented: bool = False,
    ) -> None:
        """Adds a process. An invented one stays until it is removed, others until the PID ends."""
        if kind not in ("C", "M+C", "G", "C+G", "M"):
            raise SimError(f"process type {kind!r} is unknown: choose C, M+C, G, C+G or M")
        process = Process(
            pid=pid,
            gpu=self._node.gpu(gpu).uuid,
            kind=kind,
            used_bytes=used_bytes,
            sm_percent=sm_percent,
            memory_percent=memory_percent,
            name=name,
            gi=gi,
            ci=ci,
            invented=invented,
        )
        self._node.state.write_process(process)

    def remove_process(self, gpu: Which, pid: int) -> None:
        chosen = self._node.gpu(gpu)
        if not self._node.state.remove_process(pid, chosen.uuid):
            raise SimError(f"process {pid} is not on GPU {chosen.index}")

    def nvml_init(self, code: int | str | None) -> None:
        """nvmlInit fails with this code (`DRIVER_NOT_LOADED`). None ends it."""
        self._node.set({"fault.nvml_init": _error(code)})

    def event_wait(self, code: int | str | None) -> None:
        """Waits for events fail with this code at once, including those in progress."""
        self._node.set({"fault.event_wait": _error(code)})

    def event_set(self, code: int | str | None) -> None:
        """Event sets cannot be created: it fails with this code. None ends it."""
        self._node.set({"fault.event_set": _error(code)})

    def call(self, gpu: Which, function: str, code: int | str | None) -> None:
        """An NVML function (`nvmlDeviceRegisterEvents`) fails for one GPU. None ends it."""
        self._set(gpu, {f"fault.{function}": _error(code)})

    def ignore_memory_limits(self, gpu: Which, *, ignored: bool = True) -> None:
        """Limits of cgroups are accepted and not set."""
        self._set(gpu, {"limits.ignored": int(ignored)})

    def hang(self, gpu: Which | None = None, function: str = "", *, hangs: bool = True) -> None:
        """NVML calls do not return: all, those of one GPU, those of one function, or both.

        With `hangs=False` they return. Name `nvmlInit` for every version of it.
        """
        key = f"fault.hang.{function}" if function else "fault.hang"
        if gpu is None:
            self._node.set({key: int(hangs)})
        else:
            self._set(gpu, {key: int(hangs)})

    def nameless_events(self, gpu: Which, *, nameless: bool = True) -> None:
        """From now on, its events do not name the GPU."""
        self._set(gpu, {"events.nameless": int(nameless)})

    def unbind(self, gpu: Which, driver: str = "") -> None:
        """Binds the GPU to another kernel driver (`vfio-pci`) or to none. `plug` ends it."""
        self._set(gpu, {"present": 0, "pci.driver": driver or "-"})
        self._node.refresh_root()

    def unplug(self, gpu: Which) -> None:
        """Removes the GPU: programs that use it lose it, programs that start do not see it."""
        self._set(gpu, {"present": 0, "pci.driver": ""})
        self._node.refresh_root()

    def plug(self, gpu: Which) -> None:
        """Adds the GPU again, for programs that start from now on."""
        self._set(gpu, {"present": 1, "lost": 0, "pci.driver": ""})
        self._node.refresh_root()

    def add_gpu(self, model: str) -> SimGpu:
        """Adds a GPU, last in NVML order. Processes see it at their next nvmlInit."""
        gpus = self._node.gpus()
        values = self._node.state.values()
        kind = profiles.find_model(model)
        profiles.check_supported(kind, int(values["driver.branch"]))
        bus = max(int(gpu.pci[9:11], 16) for gpu in gpus) + 1
        if bus > 0xFF:
            raise SimError(
                "no free PCI bus above the GPUs of this node: unplug a GPU or create a new node"
            )
        slot = profiles.Slot(
            kind, bus, gpus[-1].numa, max(gpu.minor for gpu in gpus) + 1, switch=-1, mig=()
        )
        origin = f"{values['node.profile']}/{values['node.seed']}/{len(gpus)}"
        keys = profiles.gpu_keys(len(gpus), slot, origin)
        self._node.set(keys | {"gpu.count": len(gpus) + 1})
        self._node.refresh_root()
        return self._node.gpu(len(gpus))

    def mig(self, gpu: Which, layout: Sequence[str]) -> None:
        """Sets the MIG layout (`["3g.20gb", "1g.5gb"]`). An empty one disables MIG."""
        chosen = self._node.gpu(gpu)
        profiles_of = profiles.find_model(chosen.model).mig
        if not profiles_of:
            raise SimError(f"GPU {chosen.index} ({chosen.name}) does not support MIG")
        self._set(gpu, layout_keys(chosen.uuid, profiles_of, layout))
        self._node.refresh_root()

    def _remap(self, gpu: Which, values: dict[str, Value]) -> None:
        chosen = self._node.gpu(gpu)
        if f"gpu.{chosen.index}.remap.pending" not in self._node.state.values():
            raise SimError(
                f"GPU {chosen.index} ({chosen.name}) has no row remapping (before Ampere)"
            )
        self._set(gpu, values)

    def _set(self, gpu: Which, values: dict[str, Value]) -> None:
        index = self._node.gpu(gpu).index
        self._node.set({f"gpu.{index}.{key}": value for key, value in values.items()})


def _error(code: int | str | None) -> int:
    return 0 if code in (None, 0, "0", "none") else _choose(NvmlError, "NVML error", code)


def _choose(kind: type[IntEnum], what: str, wanted: int | str | None) -> int:
    text = str(wanted).upper().removeprefix("NVML_ERROR_")
    for member in kind:
        if text in (member.name, str(member.value)):
            return member.value
    names = ", ".join(f"{member.name} ({member.value})" for member in kind)
    raise SimError(f"{what} {wanted!r} is unknown: choose one of {names}")
