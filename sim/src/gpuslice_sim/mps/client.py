"""A client of a server: its limits, contexts and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuslice_sim.mps.limits import multiprocessors, tighter
from gpuslice_sim.mps.wire import LineBuffer

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.namespaces import NamespaceLimits
    from gpuslice_sim.mps.settings import ServerSettings
    from gpuslice_sim.mps.wire import Line


_LARGEST = (1 << 63) - 1  # for clients in C


class CudaError(Exception):
    """A call fails. `name` is the constant that a CUDA program sees."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(f"{name}: {text}" if text else name)
        self.name = name
        self.text = text


@dataclass(frozen=True)
class Terms:
    """The settings that a client gets when it connects. Later changes do not affect it."""

    percentage: float
    pinned: dict[str, int]
    priority: int
    partition_uuid: str | None = None
    partition_sms: int = 0
    # Whether the client cannot choose another share of the threads: that of a namespace.
    overrides: bool = False


def terms_of(
    settings: ServerSettings, devices: Sequence[Device], namespace: NamespaceLimits | None
) -> Terms:
    """`namespace`: only with protocol 3. Settings of the server do not apply to its clients."""
    if namespace is None:
        pinned = {uuid: one.limit_bytes for uuid, one in settings.pinned.items()}
        percentage, priority = settings.percentage, 0
    else:
        limit = namespace.pinned
        pinned = {} if limit is None else {one.uuid: limit.limit_bytes for one in devices}
        percentage, priority = namespace.percentage or 100.0, namespace.priority or 0
    return Terms(
        percentage,
        {uuid: min(limit, _LARGEST) for uuid, limit in pinned.items()},
        priority,
        overrides=namespace is not None and namespace.percentage is not None,
    )


@dataclass(frozen=True)
class OwnLimits:
    """The memory limits in the environment of the client."""

    pinned: dict[str, int] = field(default_factory=dict)
    drops_pinned: bool = False


@dataclass(frozen=True)
class Context:
    device: Device
    percentage: float
    sms: int


@dataclass
class Client:
    connection: socket.socket
    token: int
    pid: int
    command: str
    terms: Terms
    # Only with protocol 3.
    namespace: str | None = None
    own_limits: OwnLimits = field(default_factory=OwnLimits)
    buffer: LineBuffer = field(default_factory=LineBuffer)
    contexts: dict[int, Context] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)
    next_context: int = 0
    error: str | None = None

    def limit_bytes(self, device: Device) -> int | None:
        """The smaller of both limits. None if the client names a GPU that it does not see."""
        if self.own_limits.drops_pinned or not device.has_limits:
            return None
        return tighter(self.terms.pinned.get(device.uuid), self.own_limits.pinned.get(device.uuid))

    def context_on(self, device: Device, wanted: float | None) -> Context:
        if self.terms.partition_uuid is not None:
            if device.uuid != self.terms.partition_uuid:
                raise CudaError(
                    "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
                    f"CUDA_MPS_SM_PARTITION names a partition of {self.terms.partition_uuid}",
                )
            sms = self.terms.partition_sms
            return Context(device, round(100 * sms / device.sms, 1), sms)
        if not device.has_limits:
            return Context(device, 100.0, device.sms)
        own = 100.0 if self.terms.overrides else wanted or 100.0
        percentage = min(self.terms.percentage, own)
        return Context(
            device, percentage, multiprocessors(percentage, device.sms, device.sms_per_tpc)
        )

    def used_bytes(self, device: Device, context_bytes: int) -> int:
        contexts = sum(context.device == device for context in self.contexts.values())
        return contexts * context_bytes + self.allocated.get(device.uuid, 0)

    def devices(self) -> list[Device]:
        return list(dict.fromkeys(context.device for context in self.contexts.values()))

    def share_on(self, device: Device) -> float:
        shares = [each.percentage for each in self.contexts.values() if each.device == device]
        return max(shares, default=0.0)


def own_limits_from(line: Line) -> OwnLimits:
    """Reads `config limits=<uuid>:<bytes>,… dropped=0|1`."""
    pinned = {}
    for entry in filter(None, (line.get("limits") or "").split(",")):
        uuid, _, limit = entry.rpartition(":")
        pinned[uuid] = int(limit)
    return OwnLimits(pinned, line.get("dropped") == "1")
