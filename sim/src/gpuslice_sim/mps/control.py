"""The decisions of a control daemon: defaults, its server, and which clients it serves when."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuslice_sim.mps import process
from gpuslice_sim.mps.calls import error_line
from gpuslice_sim.mps.client import terms_of
from gpuslice_sim.mps.devices import select, served_devices
from gpuslice_sim.mps.logs import control_log, server_log
from gpuslice_sim.mps.partitions import Partitions
from gpuslice_sim.mps.server import MESSAGE_BYTES, ServerPlan, run_server
from gpuslice_sim.mps.server_program import server_program
from gpuslice_sim.mps.settings import (
    FIRST_BRANCH_WITH_UUID_KEYS,
    Defaults,
    ServerSettings,
    at_server_start,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuslice_sim.mps.devices import Device
    from gpuslice_sim.mps.namespaces import NamedServer, NamespaceLimits
    from gpuslice_sim.mps.partitions import Partition

INITIALIZING, ACTIVE, FAULT = "INITIALIZING", "ACTIVE", "FAULT"
ENDED = "ENDED"  # until the daemon reads its exit status
_SERVER_TIMEOUT_SECONDS = 30.0
_FIRST_BRANCH_THAT_LOGS_FORCE = 550


@dataclass(frozen=True)
class DaemonConfig:
    """The options of a daemon, which do not change while it runs."""

    node: Path
    pipe_directory: Path
    # None: it logs to standard output.
    log_directory: Path | None
    branch: int
    # The PATH of the daemon, where it searches its server.
    search_path: str | None = None
    visible_devices: str | None = None
    multiuser: bool = False
    static_partitioning: bool = False
    protocol: int = 2
    defaults: Defaults = field(default_factory=Defaults)


@dataclass(frozen=True)
class ClientConnection:
    """A client that connected to the daemon."""

    connection: socket.socket
    pid: int
    uid: int
    command: str
    partition: str | None
    # Only with protocol 3: its name and limits.
    namespace: str | None = None
    limits: NamespaceLimits | None = None


@dataclass
class ServerHandle:
    """A server process, as the daemon sees it."""

    pid: int
    uid: int
    devices: tuple[Device, ...]
    settings: ServerSettings
    requests: socket.socket
    events: socket.socket
    status: str = INITIALIZING
    # By token of the client.
    client_partitions: dict[int, Partition | None] = field(default_factory=dict)
    # Passed to the server, which has not confirmed them.
    handed_over: dict[int, ClientConnection] = field(default_factory=dict)
    last_number: int = 0

    def call(self, **request: object) -> dict[str, Any]:
        """Sends a request and returns the answer, which is empty if the server does not respond."""
        self.last_number += 1
        try:
            self.requests.send(json.dumps({**request, "number": self.last_number}).encode())
            while data := self.requests.recv(MESSAGE_BYTES):
                answer: dict[str, Any] = json.loads(data)
                # Others are late answers to earlier requests.
                if answer["number"] == self.last_number:
                    return answer
        except OSError:
            pass
        return {}

    def clients(self) -> list[dict[str, Any]]:
        return list(self.call(op="clients").get("clients", []))

    def close(self) -> None:
        self.requests.close()
        self.events.close()


class Control:
    """The daemon without its event loop, to which `watch` and `unwatch` belong."""

    def __init__(
        self,
        config: DaemonConfig,
        read_state: Callable[[], dict[str, str]],
        watch: Callable[[socket.socket], None],
        unwatch: Callable[[socket.socket], None],
        named_server_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        # Only with protocol 3.
        self.named: NamedServer | None = None
        self._named_server_ended = named_server_ended
        self.defaults = config.defaults
        self.partitions = Partitions()
        self.server: ServerHandle | None = None
        self.is_quitting = False
        # When the server is ended although it has clients; None: never.
        self._quit_deadline: float | None = None
        self._told_to_end = False
        self.log = control_log(config.log_directory)
        self._read_state = read_state
        self._watch = watch
        self._unwatch = unwatch
        self._queue: deque[ClientConnection] = deque()
        self._tokens = 0

    def devices(self) -> tuple[Device, ...]:
        """The devices of a server that starts now."""
        served = served_devices(self._read_state(), self.config.visible_devices)
        return select(served, self.named.allowed) if self.named else served

    def admit(self, client: ClientConnection) -> None:
        """Adds a client to the queue. `serve` passes it to the server when it is its turn."""
        if os.geteuid() != 0 and client.uid != os.geteuid():
            text = f"a daemon of user {os.geteuid()} serves that user only"
            self._reject(client, "CUDA_ERROR_MPS_CONNECTION_FAILED", text)
            return
        if self.config.static_partitioning and self._partition_of(client) is None:
            text = "the daemon uses static partitions: set CUDA_MPS_SM_PARTITION to one of them"
            self._reject(client, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", text)
            return
        self._queue.append(client)
        self.serve()
        if any(waiting is client for waiting in self._queue):
            self.log.write(f"NEW CLIENT {client.pid} from user {client.uid}: pending")

    def abandon(self, connection: socket.socket) -> None:
        """A client in the queue closed its connection."""
        self._queue = deque(each for each in self._queue if each.connection is not connection)
        self.serve()

    def serve(self) -> None:
        """One server at a time: a client of another user waits until the server is idle."""
        while self._queue and not self.is_quitting:
            client = self._queue[0]
            uid = self._server_uid(client.uid)
            if self.server is None and self.config.protocol == 3:
                text = "the daemon has no server: create one"
                self._reject(self._queue.popleft(), "CUDA_ERROR_MPS_CONNECTION_FAILED", text)
                continue
            if self.server is None:
                self.start_server(uid)
                return
            if self.server.status in (INITIALIZING, ENDED):
                return
            if self.server.uid != uid:
                if self.server.client_partitions:
                    return
                self.stop_server()
                continue
            if not self._hand_over(client, self.server):
                return
            self._queue.popleft()

    def start_server(self, uid: int) -> ServerHandle:
        devices = self.devices()
        settings = at_server_start(
            self.defaults,
            devices,
            uuid_keys_apply=self.config.branch >= FIRST_BRANCH_WITH_UUID_KEYS,
        )
        log = server_log(self.config.log_directory)
        program = server_program(self.config.node, self.config.search_path)
        plan = ServerPlan(self.config.node, self._server_uid(uid), devices, log, program)
        requests, their_requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        events, their_events = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = _fork_server(plan, their_requests, their_events)
        their_requests.close()
        their_events.close()
        requests.settimeout(_SERVER_TIMEOUT_SECONDS)
        events.setblocking(False)
        self.server = ServerHandle(pid, plan.uid, devices, settings, requests, events)
        self._watch(events)
        self.log.write(f"Starting new server {pid} for user {plan.uid}")
        return self.server

    def stop_server(self) -> None:
        if self.server is None:
            return
        pid = self.server.pid
        os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + _SERVER_TIMEOUT_SECONDS
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        self._forget_server("stopped")

    def reap(self) -> None:
        """Handles a server that exited or was killed."""
        if self.server is None:
            return
        pid, status = os.waitpid(self.server.pid, os.WNOHANG)
        if pid == 0:
            return
        self._read_events(self.server)
        if self.server.status == INITIALIZING:
            text = "the server exited while it started"
            self._fail_queue(self.server, "CUDA_ERROR_MPS_CONNECTION_FAILED", text)
        how = os.waitstatus_to_exitcode(status)
        self._forget_server(f"exited with status {how}" if how >= 0 else f"killed by signal {-how}")
        self.serve()

    def take_events(self) -> None:
        """Reads the events of the server, before every command, so that answers are current."""
        if self.server is not None:
            self._read_events(self.server)
            self.serve()

    def uses(self, partition: Partition) -> bool:
        return self.server is not None and partition in self.server.client_partitions.values()

    def waits(self, connection: socket.socket) -> bool:
        return any(client.connection is connection for client in self._queue)

    def quit(self, seconds: float | None = None) -> None:
        """Ends when the server has no clients any more, or after this time."""
        self.is_quitting = True
        self._quit_deadline = None if seconds is None else time.monotonic() + seconds
        for client in self._queue:
            client.connection.close()
        self._queue.clear()

    def quit_seconds(self) -> float | None:
        """How long the daemon may wait for events."""
        if self._quit_deadline is None or self._told_to_end:
            return None
        return max(0.0, self._quit_deadline - time.monotonic())

    def has_quit(self) -> bool:
        """Also tells the server to end, when it is time."""
        server = self.server
        if server is None or not self.is_quitting:
            return self.is_quitting
        is_idle = server.status in (ACTIVE, FAULT) and not server.client_partitions
        is_late = self._quit_deadline is not None and time.monotonic() >= self._quit_deadline
        if (is_idle or is_late) and not self._told_to_end:
            self._told_to_end = True
            if is_late and self.config.branch >= _FIRST_BRANCH_THAT_LOGS_FORCE:
                self.log.write(f"Force shutting down server {server.pid}")
            os.kill(server.pid, signal.SIGINT)
        return False

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
                server.client_partitions.pop(event["token"], None)
            case "failed":
                server.status = ENDED
                self._fail_queue(server, event["error"], event["text"])

    def _fail_queue(self, server: ServerHandle, error: str, text: str) -> None:
        """Rejects the clients that wait for a server that cannot start."""
        self.log.write(f"NEW SERVER {server.pid}: Failed to start: {error}: {text}")
        waiting, self._queue = self._queue, deque()
        for client in waiting:
            if self._server_uid(client.uid) == server.uid:
                self._reject(client, error, text)
            else:
                self._queue.append(client)

    def _hand_over(self, client: ClientConnection, server: ServerHandle) -> bool:
        """Returns False if the server has exited. The client stays in the queue for the next one.

        The connection is kept until the server confirms it, in case the server exits before.
        """
        partition = self._partition_of(client)
        terms = terms_of(server.settings, server.devices, client.limits)
        terms = replace(
            terms,
            priority=terms.priority or self.defaults.priority,
            partition_uuid=partition.device.uuid if partition else None,
            partition_sms=partition.sms if partition else 0,
        )
        message = {
            "op": "client",
            "token": self._tokens,
            "command": client.command,
            "namespace": client.namespace,
            "terms": asdict(terms),
        }
        try:
            socket.send_fds(
                server.requests, [json.dumps(message).encode()], [client.connection.fileno()]
            )
        except OSError:
            return False
        server.client_partitions[self._tokens] = partition
        server.handed_over[self._tokens] = client
        self._tokens += 1
        self._unwatch(client.connection)
        self.log.write(f"NEW CLIENT {client.pid} from user {client.uid}: Server already exists")
        return True

    def _forget_server(self, how: str) -> None:
        if self.server is None:
            return
        self.log.write(f"Server {self.server.pid} {how}")
        self._unwatch(self.server.events)
        self.server.close()
        self._queue.extendleft(reversed(self.server.handed_over.values()))
        self.server = None
        if self.named is not None:
            self.named = None
            self._named_server_ended()

    def _reject(self, client: ClientConnection, error: str, text: str) -> None:
        self._unwatch(client.connection)
        with suppress(OSError):
            client.connection.sendall(error_line(error, text))
        client.connection.close()

    def _partition_of(self, client: ClientConnection) -> Partition | None:
        return self.partitions.find(client.partition) if client.partition else None

    def _server_uid(self, uid: int) -> int:
        return 0 if self.config.multiuser else uid


def _fork_server(plan: ServerPlan, requests: socket.socket, events: socket.socket) -> int:
    """Blocks signals until the child has its own handlers: it inherits those of the daemon."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    pid = os.fork()
    if pid == 0:
        _run_in_child(plan, requests, events)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return pid


def _run_in_child(plan: ServerPlan, requests: socket.socket, events: socket.socket) -> None:
    """Never returns: the objects of the daemon must not be cleaned up in the child."""
    code = 1
    try:
        process.close_descriptors({0, 1, 2, requests.fileno(), events.fileno()})
        code = run_server(plan, requests, events)
    finally:
        os._exit(code)
