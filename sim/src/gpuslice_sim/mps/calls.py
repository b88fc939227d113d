"""The CUDA calls of clients: contexts, memory, faults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuslice_sim.mps import wire
from gpuslice_sim.mps.cgroup_limits import cgroup_room, reported_room
from gpuslice_sim.mps.client import CudaError, own_limits_from
from gpuslice_sim.mps.devices import is_lost
from gpuslice_sim.mps.gpu_usage import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuslice_sim.mps.client import Client
    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.gpu_usage import GpuUsage
    from gpuslice_sim.mps.wire import Line


class Calls:
    """Answers calls and accounts for memory. `report_fault` is called for a fault of a GPU."""

    def __init__(
        self,
        devices: Sequence[Device],
        usage: GpuUsage,
        clients: Mapping[int, Client],
        report_fault: Callable[[Device, Client], None],
    ) -> None:
        self._devices = devices
        self._usage = usage
        self._clients = clients
        self._report_fault = report_fault
        self._handlers: dict[str, Callable[[Client, Line], bytes]] = {
            "config": self._config,
            "context": self._context,
            "alloc": self._alloc,
            "query": self._query,
            "sync": self._sync,
            "fault": self._fault,
        }

    def answer(self, client: Client, line: Line) -> bytes:
        handler = self._handlers.get(line.verb)
        try:
            if client.error is not None:
                raise CudaError(client.error)
            if handler is None:
                raise CudaError("CUDA_ERROR_INVALID_VALUE", f"unknown call {line.verb!r}")
            return handler(client, line)
        except CudaError as error:
            return error_line(error.name, error.text)
        except (KeyError, ValueError) as error:
            return error_line("CUDA_ERROR_INVALID_VALUE", f"{line.verb}: {error!r}")

    def release(self, client: Client) -> None:
        """Releases everything that a client holds."""
        for device in client.devices():
            self._usage.release(client.token, device.uuid)
        client.contexts.clear()
        client.allocated.clear()

    def context_bytes(self) -> int:
        return int(self._usage.values().get("cuda.context_bytes") or 0)

    def _config(self, client: Client, line: Line) -> bytes:
        client.own_limits = own_limits_from(line)
        return wire.encode("ok")

    def _context(self, client: Client, line: Line) -> bytes:
        device = self._device(line)
        self._check_present(device)
        wanted = line.get("percentage")
        context = client.context_on(device, float(wanted) if wanted else None)
        most = int(self._usage.values().get("mps.max_contexts") or 48)
        if self._contexts_on(device) >= most:
            raise CudaError(
                "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", f"{device.uuid} has {most} contexts already"
            )
        number = client.next_context
        with self._usage.locked():
            self._check_room(client, device, self.context_bytes())
            client.contexts[number] = context
            client.next_context += 1
            self._publish(client, device)
        limit = client.limit_bytes(device)
        return wire.encode(
            "ok", id=number, sms=context.sms, percentage=context.percentage, limit=limit
        )

    def _alloc(self, client: Client, line: Line) -> bytes:
        device = client.contexts[int(line.fields["context"])].device
        size = int(line.fields["bytes"])
        if size <= 0:
            raise CudaError("CUDA_ERROR_INVALID_VALUE", "an allocation must have at least one byte")
        self._check_present(device)
        with self._usage.locked():
            self._check_room(client, device, size)
            client.allocated[device.uuid] = client.allocated.get(device.uuid, 0) + size
            self._publish(client, device)
        return wire.encode("ok")

    def _query(self, client: Client, line: Line) -> bytes:
        """Like cudaMemGetInfo: `free` depends on the limit, `total` is that of the whole GPU."""
        device = self._device(line)
        used = client.used_bytes(device, self.context_bytes())
        limit = client.limit_bytes(device)
        with self._usage.locked():
            free = min(self._usage.free_bytes(device), self._room(client, device, reported=True))
        if limit is not None:
            free = min(free, max(limit - used, 0))
        return wire.encode("ok", used=used, free=free)

    def _sync(self, client: Client, line: Line) -> bytes:
        del line
        for device in client.devices():
            self._check_present(device)
        return wire.encode("ok")

    def _fault(self, client: Client, line: Line) -> bytes:
        self._report_fault(self._device(line), client)
        raise CudaError(client.error or "CUDA_ERROR_LAUNCH_FAILED")

    def _device(self, line: Line) -> Device:
        uuid = line.fields["device"]
        for device in self._devices:
            if device.uuid == uuid:
                return device
        raise CudaError("CUDA_ERROR_INVALID_DEVICE", f"the server has no device {uuid!r}")

    def _check_present(self, device: Device) -> None:
        if is_lost(self._usage.values(), device):
            raise CudaError("CUDA_ERROR_DEVICE_UNAVAILABLE", f"{device.uuid} is lost")

    def _check_room(self, client: Client, device: Device, size: int) -> None:
        """Checks the limit of the client and the free memory of the GPU."""
        limit = client.limit_bytes(device)
        used = client.used_bytes(device, self.context_bytes())
        if limit is not None and used + size > limit:
            raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", f"limit {limit}, used {used}")
        if size > self._usage.free_bytes(device):
            raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", f"{device.uuid} is full")
        if size > self._room(client, device):
            raise CudaError(
                "CUDA_ERROR_OUT_OF_MEMORY", f"{device.uuid}: the limit of the cgroup is reached"
            )

    def _room(self, client: Client, device: Device, *, reported: bool = False) -> float:
        """By the limits of cgroups, which the driver enforces below MPS."""
        if device.mig is not None:
            return math.inf
        room = reported_room if reported else cgroup_room
        return room(self._usage.values(), self._usage.processes(device), device.index, client.pid)

    def _publish(self, client: Client, device: Device) -> None:
        used = client.used_bytes(device, self.context_bytes())
        share = round(client.share_on(device))
        self._usage.hold(
            client.token, Entry(client.pid, device.uuid, "M+C", used, share, client.command)
        )

    def _contexts_on(self, device: Device) -> int:
        return sum(
            context.device == device
            for client in self._clients.values()
            for context in client.contexts.values()
        )


def error_line(name: str, text: str = "") -> bytes:
    return wire.encode("error", name=name, text=text)
