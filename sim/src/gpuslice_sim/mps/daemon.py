"""The process of the control daemon: files, socket, event loop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuslice_sim.mps import process, wire
from gpuslice_sim.mps.commands import Caller, CommandError, Commands
from gpuslice_sim.mps.control import ClientConnection, Control, DaemonConfig
from gpuslice_sim.mps.gpu_usage import GpuUsage
from gpuslice_sim.mps.logs import append, control_log
from gpuslice_sim.mps.module_commands import ModuleCommands
from gpuslice_sim.mps.namespaces import DEFAULT, NamespaceSockets
from gpuslice_sim.mps.server import peer, wake_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpuslice_sim.mps.wire import Line

TITLE = "nvidia-cuda-mps-control"
# Of control_privileged, the longer of the two.
_LONGEST_SOCKET_PATH = 106
_FIRST_BRANCH_WITH_PID_FILE = 550


class AlreadyRunningError(Exception):
    """Another daemon serves this pipe directory."""


# The status of a command of protocol 3 that a daemon of protocol 2 gets.
_OTHER_PROTOCOL = 255


class SocketPathError(Exception):
    """The path is too long for an AF_UNIX address."""


def run_daemon(config: DaemonConfig, ready: Callable[[], None]) -> int:
    """Serves until `quit`. Calls `ready` when the socket answers. Signals end it at once."""
    log = control_log(config.log_directory)
    endpoint = Endpoint(config.pipe_directory)
    try:
        listeners = endpoint.open(config.branch)
    except SocketPathError:
        return 1
    log.write(f"Starting control daemon using socket {endpoint.socket_path}")
    log.write(
        "To connect CUDA applications to this daemon, set env "
        f"CUDA_MPS_PIPE_DIRECTORY={config.pipe_directory}"
    )
    ready()
    daemon = Daemon(config, endpoint, listeners)
    daemon.run()
    log.write("Exit with status 0")
    return 0


@dataclass(frozen=True)
class Listeners:
    for_all: socket.socket
    # For root and the user of the daemon.
    privileged: socket.socket


class Endpoint:
    """The files of a daemon in its pipe directory."""

    def __init__(self, directory: Path) -> None:
        self.socket_path = directory / "control"
        self._privileged_path = directory / "control_privileged"
        self._lock_path = directory / "control_lock"
        self._fifo_path = directory / "log"
        self._pid_path = directory / "nvidia-cuda-mps-control.pid"
        self._lock = -1

    def open(self, branch: int) -> Listeners:
        """Replaces the files of a killed daemon, but not those of a running one."""
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(PermissionError):  # it belongs to another user
            self._lock_path.chmod(0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise AlreadyRunningError("An instance of this daemon is already running") from None
        self._fifo_path.unlink(missing_ok=True)
        os.mkfifo(self._fifo_path)
        self._fifo_path.chmod(0o777)
        length = len(os.fsencode(self._privileged_path))
        if length > _LONGEST_SOCKET_PATH:
            raise SocketPathError
        listeners = Listeners(_listen(self.socket_path, 0o666), _listen(self._privileged_path))
        if branch >= _FIRST_BRANCH_WITH_PID_FILE:
            self._pid_path.write_text(str(os.getpid()))
            self._pid_path.chmod(0o666)
        return listeners

    def close(self) -> None:
        """Releases the lock last, so that another daemon can start as soon as it is free."""
        self._fifo_path.unlink(missing_ok=True)
        self._pid_path.unlink(missing_ok=True)
        os.close(self._lock)


def _listen(path: Path, mode: int | None = None) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    if mode is not None:
        path.chmod(mode)
    listener.listen(128)
    listener.setblocking(False)
    return listener


class Daemon:
    """Reads the lines of each connection and dispatches them."""

    def __init__(self, config: DaemonConfig, endpoint: Endpoint, listeners: Listeners) -> None:
        self._config = config
        self._endpoint = endpoint
        self._listeners = listeners
        self._usage = GpuUsage(config.node)
        self._selector = selectors.DefaultSelector()
        self._sockets = NamespaceSockets(config.pipe_directory, self._watch, self._unwatch)
        self._control = Control(
            config,
            lambda: dict(self._usage.values()),
            self._watch,
            self._unwatch,
            self._sockets.close,
        )
        self._commands = Commands(self._control)
        self._modules = ModuleCommands(self._control, self._sockets)
        # Which namespace a connection came from, with protocol 3.
        self._namespaces: dict[socket.socket, str] = {}
        self._buffers: dict[socket.socket, wire.LineBuffer] = {}
        self._privileged: set[socket.socket] = set()
        # The program that sends commands. There is one at a time: others are dropped.
        self._commander: socket.socket | None = None
        # Gets its answer when the daemon exits.
        self._quitter: socket.socket | None = None
        self._record = config.node / "state" / "mps" / "commands.log"

    def run(self) -> None:
        wakeup = wake_on_signal(signal.SIGCHLD)
        self._watch(wakeup)
        self._watch(self._listeners.for_all)
        self._watch(self._listeners.privileged)
        while not self._control.has_quit():
            for key, _ in self._selector.select(self._control.quit_seconds()):
                source = key.fileobj
                if not isinstance(source, socket.socket):
                    continue
                if source is wakeup:
                    wakeup.recv(64)
                    self._control.reap()
                elif source in (self._listeners.for_all, self._listeners.privileged):
                    self._accept(source)
                elif (namespace := self._sockets.namespace_of(source)) is not None:
                    self._accept(source, namespace)
                elif source in self._buffers:
                    self._on_connection(source)
                else:
                    self._control.take_events()
        self._close()
        if self._quitter is not None:
            self._answer(self._quitter, 0, "")

    def _close(self) -> None:
        self._listeners.for_all.close()
        self._listeners.privileged.close()
        self._sockets.close()
        self._endpoint.close()

    def _accept(self, listener: socket.socket, namespace: str | None = None) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        self._control.log.write("Accepting connection...")
        if listener is self._listeners.privileged:
            if peer(connection)[1] not in (0, os.geteuid()):
                self._control.log.write("Unable to accept priviliged connection from other user")
                connection.close()
                return
            self._privileged.add(connection)
        if namespace is not None:
            self._namespaces[connection] = namespace
        self._buffers[connection] = wire.LineBuffer()
        self._watch(connection)

    def _on_connection(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(wire.MAX_LINE)
            lines = self._buffers[connection].feed(data)
        except (OSError, ValueError):
            data, lines = b"", []
        if not data:
            self._drop(connection)
            return
        for line in lines:
            if connection in self._buffers:  # otherwise it was passed to a server or rejected
                self._on_line(connection, wire.decode(line))

    def _on_line(self, connection: socket.socket, line: Line) -> None:
        pid, uid, _ = peer(connection)
        match line.verb:
            case "client" if not self._control.waits(connection):
                command = line.get("command") or "?"
                client = ClientConnection(connection, pid, uid, command, line.get("partition"))
                self._control.admit(self._in_namespace(client))
            case "command" | "module" if self._accepts(line.verb, connection):
                caller = Caller(uid, privileged=connection in self._privileged)
                answer = self._run_command(caller, line.verb, line.get("text") or "")
                if self._control.is_quitting:
                    self._quitter = connection
                else:
                    self._answer(connection, *answer)
            case "module" if self._config.protocol == 2:
                self._answer(connection, _OTHER_PROTOCOL, "")
            case "fault":
                self._answer(connection, *self._inject_fault(uid, line.get("device") or ""))
            case _:
                self._drop(connection)

    def _in_namespace(self, client: ClientConnection) -> ClientConnection:
        server = self._control.named
        if server is None:
            return client
        name = self._namespaces.get(client.connection, DEFAULT)
        return replace(client, namespace=name, limits=server.namespaces.get(name))

    def _accepts(self, verb: str, connection: socket.socket) -> bool:
        """Namespaces have sockets for clients only."""
        spoken = {2: "command", 3: "module"}[self._config.protocol]
        if verb != spoken or connection in self._namespaces:
            return False
        return self._commands_come_from(connection)

    def _commands_come_from(self, connection: socket.socket) -> bool:
        if self._commander is None:
            self._control.log.write("NEW UI")
            self._commander = connection
        return self._commander is connection and self._quitter is None

    def _run_command(self, caller: Caller, verb: str, text: str) -> tuple[int, str]:
        """The status is for tests: the program exits with 0 also if a command is rejected."""
        self._control.reap()
        self._control.take_events()
        self._control.log.write(f"Cmd:{text}")
        try:
            commands = self._commands if verb == "command" else self._modules
            status, output = 0, commands.run(text, caller)
        except CommandError as error:
            status, output = 1, str(error)
        for line in output.splitlines():
            self._control.log.write(line)
        self._keep_record(text, status)
        return status, output

    def _inject_fault(self, uid: int, device: str) -> tuple[int, str]:
        """Not a command of MPS: tests and demos cause a fatal GPU fault without a client."""
        server = self._control.server
        if uid not in (0, os.geteuid()):
            return 1, f"user {uid} does not own this daemon"
        if server is None or not server.call(op="fault", device=device).get("done"):
            return 1, f"no server has device {device!r}"
        self._control.take_events()
        return 0, ""

    def _keep_record(self, text: str, status: int) -> None:
        try:
            self._record.parent.mkdir(exist_ok=True)
        except OSError:
            return
        append(self._record, f"{self._config.pipe_directory}\t{status}\t{text}\n")

    def _answer(self, connection: socket.socket, status: int, text: str) -> None:
        try:
            connection.sendall(wire.encode("answer", status=status, text=text))
        except OSError:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if connection is self._commander:
            self._control.log.write("UI closed")
            self._commander = None
        if connection is self._quitter:
            self._quitter = None
        self._unwatch(connection)
        connection.close()
        self._control.abandon(connection)

    def _watch(self, source: socket.socket) -> None:
        self._selector.register(source, selectors.EVENT_READ)

    def _unwatch(self, source: socket.socket) -> None:
        """Also forgets a connection that is passed to a server or rejected."""
        self._buffers.pop(source, None)
        self._privileged.discard(source)
        self._namespaces.pop(source, None)
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            return


def name_process(arguments: Sequence[str]) -> None:
    process.rename(TITLE, *arguments)
