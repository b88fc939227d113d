"""What a control daemon decides: defaults, its server, and who may talk to it when."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gpuslice_sim.mps import process
from gpuslice_sim.mps.calls import error_line
from gpuslice_sim.mps.client import Terms
from gpuslice_sim.mps.devices import offered
from gpuslice_sim.mps.logs import control_log, server_log
from gpuslice_sim.mps.partitions import Partitions
from gpuslice_sim.mps.server import MESSAGE_BYTES, ServerPlan, run_server
from gpuslice_sim.mps.settings import Defaults, ServerSettings, at_server_start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.partitions import Partition

INITIALIZING, ACTIVE, FAULT = "INITIALIZING", "ACTIVE", "FAULT"
ENDED = "ENDED"  # until its exit status is read
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class DaemonConfig:
    """Fixed for the life of a daemon."""

    node: Path
    pipe_directory: Path
    log_directory: Path
    branch: int
    visible_devices: str | None = None
    multiuser: bool = False
    static_partitioning: bool = False
    defaults: Defaults = field(default_factory=Defaults)


@dataclass(frozen=True)
class Guest:
    """A client as the daemon sees it."""

    connection: socket.socket
    pid: int
    uid: int
    command: str
    partition: str | None


@dataclass
class ServerHandle:
    """The daemon's end of a server process."""

    pid: int
    uid: int
    devices: tuple[Device, ...]
    settings: ServerSettings
    requests: socket.socket
    events: socket.socket
    status: str = INITIALIZING
    guests: dict[int, Partition | None] = field(default_factory=dict)
    handed_over: dict[int, Guest] = field(default_factory=dict)  # but not yet taken
    asked: int = 0

    def ask(self, **request: object) -> dict[str, Any]:
        """A request with an answer; empty if the server is gone or does not move."""
        self.asked += 1
        try:
            self.requests.send(json.dumps({**request, "number": self.asked}).encode())
            while data := self.requests.recv(MESSAGE_BYTES):
                answer: dict[str, Any] = json.loads(data)
                if answer["number"] == self.asked:  # others come too late
                    return answer
        except OSError:
            pass
        return {}

    def clients(self) -> list[dict[str, Any]]:
        return list(self.ask(op="clients").get("clients", []))

    def close(self) -> None:
        self.requests.close()
        self.events.close()


class Control:
    """The daemon without its sockets' event loop, which `watch` and `unwatch` belong to."""

    def __init__(
        self,
        config: DaemonConfig,
        read_state: Callable[[], dict[str, str]],
        watch: Callable[[socket.socket], None],
        unwatch: Callable[[socket.socket], None],
    ) -> None:
        self.config = config
        self.defaults = config.defaults
        self.partitions = Partitions()
        self.server: ServerHandle | None = None
        self.quitting = False
        self.log = control_log(config.log_directory)
        self._read_state = read_state
        self._watch = watch
        self._unwatch = unwatch
        self._queue: deque[Guest] = deque()
        self._tokens = 0

    def devices(self) -> tuple[Device, ...]:
        """What a server started now would offer."""
        return offered(self._read_state(), self.config.visible_devices)

    def admit(self, guest: Guest) -> None:
        """Puts a client in line; `serve` hands it over when its turn comes."""
        if os.geteuid() != 0 and guest.uid != os.geteuid():
            text = f"a daemon of user {os.geteuid()} serves that user only"
            self._refuse(guest, "CUDA_ERROR_MPS_CONNECTION_FAILED", text)
            return
        if self.config.static_partitioning and self._partition_of(guest) is None:
            text = "the daemon uses static partitions: set CUDA_MPS_SM_PARTITION to one of them"
            self._refuse(guest, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", text)
            return
        self._queue.append(guest)
        self.serve()
        if any(waiting is guest for waiting in self._queue):
            self.log.write(f"NEW CLIENT {guest.pid} from user {guest.uid}: pending")

    def abandon(self, connection: socket.socket) -> None:
        """A client in line has gone."""
        self._queue = deque(each for each in self._queue if each.connection is not connection)
        self.serve()

    def serve(self) -> None:
        """One server at a time: a client of another user waits until the server is idle."""
        while self._queue and not self.quitting:
            guest = self._queue[0]
            uid = self._server_uid(guest.uid)
            if self.server is None:
                self.start_server(uid)
                return
            if self.server.status in (INITIALIZING, ENDED):
                return
            if self.server.uid != uid:
                if self.server.guests:
                    return
                self.stop_server()
                continue
            if not self._hand_over(guest, self.server):
                return
            self._queue.popleft()

    def start_server(self, uid: int) -> ServerHandle:
        devices = self.devices()
        settings = at_server_start(
            self.defaults, devices, uuid_keys_apply=self.config.branch != 535
        )
        log = server_log(self.config.log_directory)
        plan = ServerPlan(self.config.node, self._server_uid(uid), devices, log)
        requests, their_requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        events, their_events = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = _fork_server(plan, their_requests, their_events)
        their_requests.close()
        their_events.close()
        requests.settimeout(_PATIENCE_SECONDS)
        events.setblocking(False)
        self.server = ServerHandle(pid, plan.uid, devices, settings, requests, events)
        self._watch(events)
        self.log.write(f"Starting new server {pid} for user {plan.uid}")
        return self.server

    def stop_server(self) -> None:
        if self.server is None:
            return
        pid = self.server.pid
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        self._forget_server("stopped")

    def reap(self) -> None:
        """Notices a server that ended by itself or was killed."""
        if self.server is None:
            return
        pid, status = os.waitpid(self.server.pid, os.WNOHANG)
        if pid == 0:
            return
        self._read_events(self.server)
        if self.server.status == INITIALIZING:
            text = "the server ended while it started"
            self._fail_queue(self.server, "CUDA_ERROR_MPS_CONNECTION_FAILED", text)
        how = os.waitstatus_to_exitcode(status)
        self._forget_server(f"exited with {how}" if how >= 0 else f"killed by signal {-how}")
        self.serve()

    def take_events(self) -> None:
        """Reads what the server reported; before every command, so that answers are current."""
        if self.server is not None:
            self._read_events(self.server)
            self.serve()

    def uses(self, partition: Partition) -> bool:
        return self.server is not None and partition in self.server.guests.values()

    def waits(self, connection: socket.socket) -> bool:
        return any(guest.connection is connection for guest in self._queue)

    def shut_down(self) -> None:
        self.quitting = True
        self.stop_server()
        for guest in self._queue:
            guest.connection.close()
        self._queue.clear()

    def _read_events(self, server: ServerHandle) -> None:
        while True:
            try:
                data = server.events.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._unwatch(server.events)
                return
            self._on_event(server, json.loads(data))

    def _on_event(self, server: ServerHandle, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ready" | "recovered":
                server.status = ACTIVE
                if event["event"] == "ready":
                    self.log.write(f"NEW SERVER {server.pid}: Ready")
            case "fault":
                server.status = FAULT
                self.log.write(f"Server {server.pid} is in FAULT")
            case "joined":
                server.handed_over.pop(event["token"]).connection.close()
            case "left":
                server.guests.pop(event["token"], None)
            case "failed":
                server.status = ENDED
                self._fail_queue(server, event["error"], event["text"])

    def _fail_queue(self, server: ServerHandle, error: str, text: str) -> None:
        """A server that could not start takes the clients with it that waited for it."""
        self.log.write(f"NEW SERVER {server.pid}: Failed to start: {error}: {text}")
        waiting, self._queue = self._queue, deque()
        for guest in waiting:
            if self._server_uid(guest.uid) == server.uid:
                self._refuse(guest, error, text)
            else:
                self._queue.append(guest)

    def _hand_over(self, guest: Guest, server: ServerHandle) -> bool:
        """False if the server has just died: the client stays in line for the next one.

        The connection is kept until the server has it, in case it dies in between.
        """
        partition = self._partition_of(guest)
        terms = Terms(
            percentage=server.settings.percentage,
            pinned={uuid: limit.limit_bytes for uuid, limit in server.settings.pinned.items()},
            priority=self.defaults.priority,
            partition_uuid=partition.device.uuid if partition else None,
            partition_sms=partition.sms if partition else 0,
        )
        message = {
            "op": "client",
            "token": self._tokens,
            "command": guest.command,
            "terms": asdict(terms),
        }
        try:
            socket.send_fds(
                server.requests, [json.dumps(message).encode()], [guest.connection.fileno()]
            )
        except OSError:
            return False
        server.guests[self._tokens] = partition
        server.handed_over[self._tokens] = guest
        self._tokens += 1
        self._unwatch(guest.connection)
        self.log.write(f"NEW CLIENT {guest.pid} from user {guest.uid}: Server already exists")
        return True

    def _forget_server(self, how: str) -> None:
        if self.server is None:
            return
        self.log.write(f"Server {self.server.pid} {how}")
        self._unwatch(self.server.events)
        self.server.close()
        self._queue.extendleft(reversed(self.server.handed_over.values()))
        self.server = None

    def _refuse(self, guest: Guest, error: str, text: str) -> None:
        self._unwatch(guest.connection)
        with suppress(OSError):
            guest.connection.sendall(error_line(error, text))
        guest.connection.close()

    def _partition_of(self, guest: Guest) -> Partition | None:
        return self.partitions.find(guest.partition) if guest.partition else None

    def _server_uid(self, uid: int) -> int:
        return 0 if self.config.multiuser else uid


def _fork_server(plan: ServerPlan, requests: socket.socket, events: socket.socket) -> int:
    """Signals wait until the child has its own way to hear them: it starts with the daemon's."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    pid = os.fork()
    if pid == 0:
        _live_as_server(plan, requests, events)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return pid


def _live_as_server(plan: ServerPlan, requests: socket.socket, events: socket.socket) -> None:
    """Never returns: the daemon's objects above us must not run their clean-up here."""
    code = 1
    try:
        process.close_descriptors({0, 1, 2, requests.fileno(), events.fileno()})
        code = run_server(plan, requests, events)
    finally:
        os._exit(code)
