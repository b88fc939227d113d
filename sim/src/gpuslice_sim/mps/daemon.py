"""The process of the control daemon: files, socket, event loop."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
from typing import TYPE_CHECKING

from gpuslice_sim.mps import process, wire
from gpuslice_sim.mps.commands import CommandError, Commands
from gpuslice_sim.mps.control import ClientConnection, Control, DaemonConfig
from gpuslice_sim.mps.gpu_usage import GpuUsage
from gpuslice_sim.mps.logs import append, control_log
from gpuslice_sim.mps.server import peer, wake_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuslice_sim.mps.wire import Line

TITLE = "nvidia-cuda-mps-control"
_LONGEST_SOCKET_PATH = 107


class AlreadyRunningError(Exception):
    """Another daemon serves this pipe directory."""


class SocketPathError(Exception):
    """The path is too long for an AF_UNIX address."""


def run_daemon(config: DaemonConfig, ready: Callable[[], None]) -> int:
    """Serves until `quit` or SIGTERM. Calls `ready` when the socket answers."""
    log = control_log(config.log_directory)
    endpoint = Endpoint(config.pipe_directory)
    try:
        listener = endpoint.open()
    except SocketPathError as error:
        log.write(f"Failed to start: {error}")
        ready()  # the starter of a real daemon does not get the error either
        return 1
    log.write(f"Control daemon listens on {endpoint.socket_path}")
    ready()
    daemon = Daemon(config, endpoint, listener)
    daemon.run()
    log.write("Control daemon ends")
    return 0


class Endpoint:
    """The files of a daemon in its pipe directory."""

    def __init__(self, directory: Path) -> None:
        self.socket_path = directory / "control"
        self._lock_path = directory / "control_lock"
        self._pid_path = directory / "nvidia-cuda-mps-control.pid"
        self._lock = -1

    def open(self) -> socket.socket:
        """Replaces the files of a killed daemon, but not those of a running one."""
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise AlreadyRunningError("An instance of this daemon is already running") from None
        length = len(os.fsencode(self.socket_path))
        if length > _LONGEST_SOCKET_PATH:
            raise SocketPathError(
                f"socket path {self.socket_path} has {length} bytes, and the maximum is "
                f"{_LONGEST_SOCKET_PATH}: use a shorter CUDA_MPS_PIPE_DIRECTORY"
            )
        self.socket_path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.socket_path))
        self.socket_path.chmod(0o666)
        listener.listen(128)
        listener.setblocking(False)
        self._pid_path.write_text(f"{os.getpid()}\n")
        return listener

    def close(self) -> None:
        """Releases the lock last, so that another daemon can start as soon as it is free."""
        self.socket_path.unlink(missing_ok=True)
        self._pid_path.unlink(missing_ok=True)
        os.close(self._lock)


class Daemon:
    """Reads the lines of each connection and dispatches them."""

    def __init__(self, config: DaemonConfig, endpoint: Endpoint, listener: socket.socket) -> None:
        self._config = config
        self._endpoint = endpoint
        self._listener = listener
        self._usage = GpuUsage(config.node)
        self._selector = selectors.DefaultSelector()
        self._control = Control(
            config, lambda: dict(self._usage.values()), self._watch, self._unwatch
        )
        self._commands = Commands(self._control)
        self._buffers: dict[socket.socket, wire.LineBuffer] = {}
        self._record = config.node / "state" / "mps" / "commands.log"

    def run(self) -> None:
        wakeup = wake_on_signal(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        self._watch(wakeup)
        self._watch(self._listener)
        while not self._control.quitting:
            for key, _ in self._selector.select():
                source = key.fileobj
                if not isinstance(source, socket.socket) or self._control.quitting:
                    continue
                if source is wakeup:
                    self._on_signals(wakeup.recv(64))
                elif source is self._listener:
                    self._accept()
                elif source in self._buffers:
                    self._on_connection(source)
                else:
                    self._control.take_events()

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._control.shut_down()
            self._close()
        else:
            self._control.reap()

    def _close(self) -> None:
        self._listener.close()
        self._endpoint.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
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
                self._control.admit(client)
            case "command":
                self._answer(connection, *self._run_command(uid, line.get("text") or ""))
            case "fault":
                self._answer(connection, *self._inject_fault(uid, line.get("device") or ""))
            case _:
                self._drop(connection)

    def _run_command(self, uid: int, text: str) -> tuple[int, str]:
        self._control.reap()
        self._control.take_events()
        try:
            self._check_owner(uid)
            status, output = 0, self._commands.run(text)
        except CommandError as error:
            status, output = 1, str(error)
        self._keep_record(text, status)
        return status, output

    def _inject_fault(self, uid: int, device: str) -> tuple[int, str]:
        """Not a command of MPS: tests and demos cause a fatal GPU fault without a client."""
        server = self._control.server
        try:
            self._check_owner(uid)
        except CommandError as error:
            return 1, str(error)
        if server is None or not server.call(op="fault", device=device).get("done"):
            return 1, f"no server has device {device!r}"
        self._control.take_events()
        return 0, ""

    def _check_owner(self, uid: int) -> None:
        if uid not in (0, os.geteuid()):
            raise CommandError(f"Permission denied: user {uid} does not own this daemon")

    def _keep_record(self, text: str, status: int) -> None:
        self._control.log.write(f"Command from the control line: {text}")
        try:
            self._record.parent.mkdir(exist_ok=True)
        except OSError:
            return
        append(self._record, f"{self._config.pipe_directory}\t{status}\t{text}\n")

    def _answer(self, connection: socket.socket, status: int, text: str) -> None:
        if self._control.quitting:
            self._close()
        try:
            connection.sendall(wire.encode("answer", status=status, text=text))
        except OSError:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._unwatch(connection)
        connection.close()
        self._control.abandon(connection)

    def _watch(self, source: socket.socket) -> None:
        self._selector.register(source, selectors.EVENT_READ)

    def _unwatch(self, source: socket.socket) -> None:
        """Also forgets a connection that is passed to a server or rejected."""
        self._buffers.pop(source, None)
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            return


def name_process(option: str) -> None:
    process.rename(f"{TITLE} {option}")
