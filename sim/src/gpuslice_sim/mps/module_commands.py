"""The commands of protocol version 3: `<module> <verb> [name] [--key=value…]`.

They follow NVIDIA's documents only: no program of driver 615 was at hand to compare with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuslice_sim.mps.commands import Caller, CommandError
from gpuslice_sim.mps.control import ACTIVE, FAULT
from gpuslice_sim.mps.limits import LimitError, parse_memory, scan_percentage
from gpuslice_sim.mps.namespaces import DEFAULT, NamedServer, NamespaceLimits, is_valid
from gpuslice_sim.mps.scan import Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuslice_sim.mps.control import Control
    from gpuslice_sim.mps.namespaces import NamespaceSockets

_READS = ("list", "get")
_STATUS = {ACTIVE: "Ready", FAULT: "Fault"}
_LIMITS = ("pinned-memory-limit", "active-thread-percentage", "client-priority")
_SERVERS = ("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids")
_NAMESPACES = ("name", "server", "server-status", *_LIMITS, "pipe-directory")
_CLIENTS = ("pid", "server", "device", "namespace", "command")
_UNSET = "-"

Row = tuple[str, ...]


class ModuleCommands:
    def __init__(self, control: Control, sockets: NamespaceSockets) -> None:
        self._control = control
        self._sockets = sockets
        self._caller = Caller(0, privileged=True)
        self._table: dict[tuple[str, str], Callable[[str, dict[str, str]], str]] = {
            ("server", "create"): self._create_server,
            ("server", "delete"): self._delete_server,
            ("server", "set"): self._set_server,
            ("server", "list"): self._list_servers,
            ("server", "get"): self._list_servers,
            ("namespace", "create"): self._create_namespace,
            ("namespace", "delete"): self._delete_namespace,
            ("namespace", "set"): self._set_namespace,
            ("namespace", "list"): self._list_namespaces,
            ("namespace", "get"): self._list_namespaces,
            ("client", "list"): self._list_clients,
            ("client", "terminate"): self._terminate_client,
        }

    def run(self, text: str, caller: Caller) -> str:
        """Returns the output without a final newline. Raises CommandError."""
        words = text.split()
        if words in (["-q"], ["--quit"]):
            self._check_privilege(caller)
            self._control.quit(0)
            return ""
        module, verb, *rest = (*words, "", "")
        command = self._table.get((module, verb))
        if command is None:
            raise CommandError(f"Unknown command: {text}")
        if verb not in _READS:
            self._check_privilege(caller)
        self._caller = caller
        options = dict(word[2:].partition("=")[::2] for word in rest if word.startswith("--"))
        names = [word for word in rest if word and not word.startswith("--")]
        return command(names[0] if names else "", options)

    def _check_privilege(self, caller: Caller) -> None:
        if not caller.privileged:
            raise CommandError(f"Insufficient privileges for UID {caller.uid}")

    def _create_server(self, name: str, options: dict[str, str]) -> str:
        if not is_valid(name):
            raise CommandError(f"Invalid server name: {name!r}")
        if self._control.named is not None:
            raise CommandError(f"Server {self._control.named.name} already exists")
        limits = _limits(NamespaceLimits(), options, self._branch)
        # Also if no such device exists: the server exits then.
        server = NamedServer(name, options.get("allowed-devices", ""), {DEFAULT: limits})
        self._control.named = server
        uid = int(options["uid"]) if "uid" in options else self._caller.uid
        self._sockets.open(name, DEFAULT)
        self._control.start_server(uid)
        return ""

    def _delete_server(self, name: str, options: dict[str, str]) -> str:
        del options
        self._server(name)
        self._control.stop_server()
        return ""

    def _set_server(self, name: str, options: dict[str, str]) -> str:
        """Limits of a server are those of its default namespace."""
        return self._set_namespace(DEFAULT, {**options, "server": name})

    def _list_servers(self, name: str, options: dict[str, str]) -> str:
        rows = []
        server, process = self._control.named, self._control.server
        if server is not None and process is not None and name in ("", server.name):
            directory = str(self._sockets.directory(server.name))
            status = _STATUS.get(process.status, "Initializing")
            pid, uid = str(process.pid), str(process.uid)
            rows = [(server.name, uid, pid, status, directory, server.allowed, _UNSET)]
        return _printed(_SERVERS, rows, options)

    def _create_namespace(self, name: str, options: dict[str, str]) -> str:
        server = self._server(options.get("server", ""))
        if not is_valid(name):
            raise CommandError(f"Invalid namespace name: {name!r}")
        if name in server.namespaces:
            raise CommandError(f"Namespace {name} already exists")
        limits = _limits(NamespaceLimits(), options, self._branch)
        try:
            self._sockets.open(server.name, name)
        except OSError as error:
            raise CommandError(f"Cannot create namespace {name}: {error.strerror}") from error
        server.namespaces[name] = limits
        return ""

    def _delete_namespace(self, name: str, options: dict[str, str]) -> str:
        server = self._server(options.get("server", ""))
        self._namespace(server, name)
        if name == DEFAULT:
            raise CommandError("The default namespace cannot be deleted")
        del server.namespaces[name]
        self._sockets.close(name)
        return ""

    def _set_namespace(self, name: str, options: dict[str, str]) -> str:
        server = self._server(options.get("server", ""))
        server.namespaces[name] = _limits(self._namespace(server, name), options, self._branch)
        return ""

    def _list_namespaces(self, name: str, options: dict[str, str]) -> str:
        server, process = self._control.named, self._control.server
        rows = []
        if server is not None and process is not None:
            status = _STATUS.get(process.status, "Initializing")
            rows = [
                (one, server.name, status, *_texts(limits), self._directory(server, one))
                for one, limits in server.namespaces.items()
                if name in ("", one) and options.get("server") in (None, server.name)
            ]
        return _printed(_NAMESPACES, rows, options)

    def _list_clients(self, name: str, options: dict[str, str]) -> str:
        del name
        server, process = self._control.named, self._control.server
        rows: list[Row] = []
        if server is not None and process is not None:
            rows = [
                (str(one["pid"]), server.name, device, one["namespace"] or _UNSET, one["command"])
                for one in process.clients()
                for device in one["devices"] or [_UNSET]
            ]
        return _printed(_CLIENTS, rows, options)

    def _terminate_client(self, name: str, options: dict[str, str]) -> str:
        del options
        process = self._control.server
        pid = int(name) if name.isdigit() else 0
        if process is None or not process.call(op="terminate", pid=pid).get("done"):
            raise CommandError(f"Client {name} not found")
        return ""

    @property
    def _branch(self) -> int:
        return self._control.config.branch

    def _directory(self, server: NamedServer, namespace: str) -> str:
        return str(self._sockets.directory(server.name, namespace))

    def _server(self, name: str) -> NamedServer:
        server = self._control.named
        if server is None or server.name != name:
            raise CommandError(f"Server {name!r} not found")
        return server

    def _namespace(self, server: NamedServer, name: str) -> NamespaceLimits:
        limits = server.namespaces.get(name)
        if limits is None:
            raise CommandError(f"Namespace {name!r} not found")
        return limits


def _limits(old: NamespaceLimits, options: dict[str, str], branch: int) -> NamespaceLimits:
    memory, threads, priority = (options.get(name) for name in _LIMITS)
    try:
        if memory is not None:
            old = replace(old, pinned=parse_memory(memory, branch))
    except LimitError as error:
        raise CommandError(str(error)) from error
    if threads is not None:
        percentage = scan_percentage(Scanner(threads))
        if percentage is None:
            raise CommandError(f"Invalid active thread percentage: {threads}")
        old = replace(old, percentage=percentage)
    return old if priority is None else replace(old, priority=int(priority))


def _texts(limits: NamespaceLimits) -> Row:
    return (
        limits.pinned.text if limits.pinned else _UNSET,
        f"{limits.percentage:.1f}" if limits.percentage else _UNSET,
        _UNSET if limits.priority is None else str(limits.priority),
    )


def _printed(columns: Row, rows: Sequence[Row], options: dict[str, str]) -> str:
    """As nvidia-smi prints tables with the same option."""
    form = options.get("format", "").split(",")
    lines = list(rows) if "noheader" in form else [columns, *rows]
    separator = ", " if "csv" in form else "\t"
    return "\n".join(separator.join(line) for line in lines)
