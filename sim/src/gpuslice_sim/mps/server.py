"""An MPS server process: it holds the GPUs, and its clients fail if it does."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuslice_sim.mps import process, wire
from gpuslice_sim.mps.calls import Calls, error_line
from gpuslice_sim.mps.client import Client, CudaError, Terms
from gpuslice_sim.mps.devices import EXCLUSIVE_PROCESS, PROHIBITED, find
from gpuslice_sim.mps.gpu_usage import Entry, GpuUsage
from gpuslice_sim.mps.server_program import NAME as TITLE
from gpuslice_sim.mps.server_program import is_simulated

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.logs import Log

MESSAGE_BYTES = 1 << 17
_POLL_SECONDS = 0.01
_OWN = -1  # the key of the server itself; clients have tokens from 0


@dataclass(frozen=True)
class ServerPlan:
    """What the daemon sets before it forks a server."""

    node: Path
    uid: int
    devices: tuple[Device, ...]
    log: Log
    # None: no directory of PATH has it.
    program: Path | None


def run_server(plan: ServerPlan, requests: socket.socket, events: socket.socket) -> int:
    """Runs a forked server and returns its exit code."""
    parent = os.getppid()
    if plan.program is None:
        return 1
    if not is_simulated(plan.program):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setuid(plan.uid)
        os.execv(plan.program, [TITLE])
    process.rename(TITLE)
    _become(plan.uid)
    process.end_with_parent(parent)
    usage = GpuUsage(plan.node)
    try:
        return Server(plan, usage, requests, events).run()
    finally:
        usage.close()


class Server:
    """The event loop. It has one thread, so every request sees a consistent state."""

    def __init__(
        self, plan: ServerPlan, usage: GpuUsage, requests: socket.socket, events: socket.socket
    ) -> None:
        self._plan = plan
        self._usage = usage
        self._requests = requests
        self._events = events
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, Client] = {}
        self._faulted: set[int] = set()
        self._calls = Calls(plan.devices, usage, self._clients, self._spread_fault)
        self._stopping = False

    def run(self) -> int:
        wakeup = wake_on_signal(signal.SIGTERM, signal.SIGINT)
        if not self._may_start(wakeup):
            return 0
        try:
            self._open_devices()
        except CudaError as error:
            self._plan.log.write(f"Failed to start: {error}")
            self._send_event(event="failed", error=error.name, text=error.text)
            return 1
        self._plan.log.write(f"Server for user {self._plan.uid} is ready")
        self._send_event(event="ready")
        self._selector.register(self._requests, selectors.EVENT_READ)
        self._selector.register(wakeup, selectors.EVENT_READ)
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.fileobj is wakeup:
                    self._stopping = True
                elif key.fileobj is self._requests:
                    self._on_request()
                else:
                    self._on_client(key.data)
        self._plan.log.write("Server ends")
        return 0

    def _may_start(self, wakeup: socket.socket) -> bool:
        """Waits while the key `mps.hold_init` is 1. Returns False if the server must stop."""
        while self._usage.values().get("mps.hold_init") == "1":
            if select.select([wakeup], [], [], _POLL_SECONDS)[0]:
                return False
        return True

    def _open_devices(self) -> None:
        if not self._plan.devices:
            raise CudaError("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is visible")
        cost = int(self._usage.values().get("mps.server_bytes") or 0)
        with self._usage.locked():
            for device in self._plan.devices:
                self._check_mode(device)
                if cost > self._usage.free_bytes(device):
                    raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", f"{device.uuid} is full")
                self._usage.hold(_OWN, Entry(os.getpid(), device.uuid, "C", cost, 0, TITLE))

    def _check_mode(self, device: Device) -> None:
        busy = "all CUDA-capable devices are busy or unavailable"
        if device.compute_mode == PROHIBITED:
            raise CudaError("CUDA_ERROR_DEVICE_UNAVAILABLE", f"{busy}: {device.uuid} is PROHIBITED")
        holders = self._usage.holders(device)
        if device.compute_mode == EXCLUSIVE_PROCESS and holders:
            pids = ", ".join(map(str, sorted(holders)))
            raise CudaError(
                "CUDA_ERROR_DEVICE_UNAVAILABLE",
                f"{busy}: {device.uuid} is EXCLUSIVE_PROCESS and held by process {pids}",
            )

    # Requests of the daemon

    def _send_event(self, **event: object) -> None:
        try:
            self._events.send(json.dumps(event).encode())
        except OSError:
            self._stopping = True  # the daemon has exited

    def _on_request(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._requests, MESSAGE_BYTES, 1)
        if not data:
            self._stopping = True
            return
        request = json.loads(data)
        if request["op"] == "client":
            self._join(socket.socket(fileno=descriptors[0]), request)
            return
        answer = self._reply(request) | {"number": request["number"]}
        self._requests.send(json.dumps(answer).encode())

    def _reply(self, request: dict[str, Any]) -> dict[str, object]:
        match request["op"]:
            case "clients":
                return {"clients": [_describe(client) for client in self._clients.values()]}
            case "terminate":
                return {"done": self._terminate(request["pid"])}
            case _:
                device = find(self._plan.devices, request["device"])
                if device is not None:
                    self._spread_fault(device)
                return {"done": device is not None}

    def _terminate(self, pid: int) -> bool:
        """Destroys the contexts of a client. Its next call fails."""
        chosen = [client for client in self._clients.values() if client.pid == pid]
        for client in chosen:
            self._calls.release(client)
            self._fail(client, "CUDA_ERROR_MPS_CLIENT_TERMINATED")
        return bool(chosen)

    # Requests of clients

    def _join(self, connection: socket.socket, request: dict[str, Any]) -> None:
        connection.setblocking(False)
        pid, uid, _ = peer(connection)
        terms = Terms(**request["terms"])
        client = Client(
            connection, request["token"], pid, request["command"], terms, request["namespace"]
        )
        self._clients[client.token] = client
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._send_event(event="joined", token=client.token)
        if self._faulted:
            text = "the server waits until the clients of a fault have exited"
            self._send(client, error_line("CUDA_ERROR_MPS_SERVER_NOT_READY", text))
            self._leave(client)
            return
        self._plan.log.write(f"New client {pid} from user {uid} connected")
        self._send(client, self._description(client))

    def _description(self, client: Client) -> bytes:
        """Everything that a client needs: in a container, it has nothing but this socket."""
        terms = client.terms
        first = wire.encode(
            "server",
            pid=os.getpid(),
            client=client.pid,
            branch=self._usage.values().get("driver.branch", "0"),
            percentage=terms.percentage,
            priority=terms.priority,
            context_bytes=self._calls.context_bytes(),
            partitioned=int(terms.partition_uuid is not None),
        )
        devices = [
            wire.encode(
                "device",
                index=device.index,
                minor=device.minor,
                mig=device.mig,
                uuid=device.uuid,
                name=device.name,
                total=device.total_bytes,
                sms=device.sms,
                limit=terms.pinned.get(device.uuid) if device.has_limits else None,
            )
            for device in self._plan.devices
        ]
        return b"".join([first, *devices, wire.encode("ready")])

    def _on_client(self, client: Client) -> None:
        try:
            data = client.connection.recv(4096)
            lines = client.buffer.feed(data)
        except (OSError, ValueError):
            data, lines = b"", []
        if not data:
            self._leave(client)
            return
        for line in map(wire.decode, lines):
            if client.token not in self._clients:
                return
            if line.verb == "bye":
                self._leave(client, wire.encode("ok"))
            else:
                self._send(client, self._calls.answer(client, line))

    def _leave(self, client: Client, last_line: bytes = b"") -> None:
        """Sends the last line to the client after everything that it held is released."""
        if self._clients.pop(client.token, None) is None:
            return
        self._selector.unregister(client.connection)
        self._calls.release(client)
        self._plan.log.write(f"Client {client.pid} disconnected")
        if client.token in self._faulted:
            self._faulted.remove(client.token)
            if not self._faulted:
                self._plan.log.write("All clients of the fault are gone")
                self._send_event(event="recovered")
        self._send_event(event="left", token=client.token)
        with suppress(OSError):
            client.connection.sendall(last_line)
        client.connection.close()

    def _send(self, client: Client, data: bytes) -> None:
        try:
            client.connection.sendall(data)
        except OSError:
            self._leave(client)

    def _fail(self, client: Client, name: str) -> None:
        """Every further call fails with the error. A waiting client gets it at once."""
        client.error = name
        self._send(client, error_line(name))

    def _spread_fault(self, device: Device, origin: Client | None = None) -> None:
        """Fails all clients of every GPU that shares a client with the faulting GPU."""
        if not device.has_limits:
            self._plan.log.write(f"Fatal fault on {device.uuid}: the server ends")
            self._stopping = True
            return
        reached = {device}
        for client in self._clients.values():
            if device in client.devices():
                reached.update(client.devices())
        hit = [each for each in self._clients.values() if reached.intersection(each.devices())]
        self._plan.log.write(f"Fatal fault on {device.uuid}: {len(hit)} clients affected")
        self._faulted.update(client.token for client in hit)
        if hit:
            self._send_event(event="fault")
        for client in hit:
            if client is origin:
                client.error = "CUDA_ERROR_LAUNCH_FAILED"
            else:
                self._fail(client, "CUDA_ERROR_LAUNCH_FAILED")


def peer(connection: socket.socket) -> tuple[int, int, int]:
    """PID, user and group of the peer, in the namespaces of this process."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return pid, uid, gid


def wake_on_signal(*signals: signal.Signals) -> socket.socket:
    """A socket that becomes readable when one of the signals arrives."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return receiver


def _describe(client: Client) -> dict[str, object]:
    return {
        "token": client.token,
        "pid": client.pid,
        "command": client.command,
        "namespace": client.namespace,
        "devices": [device.uuid for device in client.devices()],
    }


def _become(uid: int) -> None:
    """Makes the user the owner of the process, who can signal it.

    The effective user stays root, because the state of the node belongs to root.
    """
    if os.geteuid() == 0 and uid != 0:
        os.setresuid(uid, 0, 0)
