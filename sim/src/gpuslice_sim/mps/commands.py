"""The commands of protocol version 2: arguments, effect, output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuslice_sim.mps import process
from gpuslice_sim.mps.devices import find
from gpuslice_sim.mps.limits import LimitError, parse_memory, parse_whole_percentage
from gpuslice_sim.mps.partitions import PartitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuslice_sim.mps.control import Control, ServerHandle
    from gpuslice_sim.mps.devices import Device


class CommandError(Exception):
    """The daemon rejects a command."""


@dataclass(frozen=True)
class Command:
    usage: str
    least: int
    most: int
    run: Callable[[Sequence[str]], str]


class Commands:
    """Runs command lines against a daemon."""

    def __init__(self, control: Control) -> None:
        self._control = control
        usages = {
            "get_server_list": (0, 0, "", self._get_server_list),
            "get_server_status": (1, 1, "<server pid>", self._get_server_status),
            "start_server": (2, 3, "-uid <uid> [-mlopart]", self._start_server),
            "shutdown_server": (1, 2, "<server pid> [-f]", self._shutdown_server),
            "get_client_list": (1, 1, "<server pid>", self._get_client_list),
            "get_device_client_list": (0, 1, "[<server pid>]", self._get_device_client_list),
            "ps": (0, 2, "[-p <client pid>]", self._ps),
            "set_default_active_thread_percentage": (
                1, 1, "<percentage>", self._set_default_percentage,
            ),
            "get_default_active_thread_percentage": (0, 0, "", self._get_default_percentage),
            "set_active_thread_percentage": (
                2, 2, "<server pid> <percentage>", self._set_percentage,
            ),
            "get_active_thread_percentage": (1, 1, "<server pid>", self._get_percentage),
            "set_default_device_pinned_mem_limit": (
                2, 2, "<device> <limit>", self._set_default_pinned,
            ),
            "get_default_device_pinned_mem_limit": (1, 1, "<device>", self._get_default_pinned),
            "set_device_pinned_mem_limit": (
                3, 3, "<server pid> <device> <limit>", self._set_pinned,
            ),
            "get_device_pinned_mem_limit": (2, 2, "<server pid> <device>", self._get_pinned),
            "set_default_client_priority": (1, 1, "<0|1>", self._set_priority),
            "get_default_client_priority": (0, 0, "", self._get_priority),
            "terminate_client": (2, 2, "<server pid> <client pid>", self._terminate_client),
            "device_query": (0, 2, "[<server pid>] [--csv]", self._device_query),
            "quit": (0, 0, "", self._quit),
        }  # fmt: skip
        if control.config.branch >= 590:
            usages["sm_partition"] = (3, 3, "add <uuid> <chunks> | rm <uuid> <id>", self._partition)
            usages["lspart"] = (0, 0, "", self._lspart)
        self._table = {
            name: Command(f"{name} {usage}".strip(), least, most, run)
            for name, (least, most, usage, run) in usages.items()
        }

    def run(self, text: str) -> str:
        """Returns the output without a final newline. Raises CommandError."""
        words = text.split()
        if not words:
            return ""
        command = self._table.get(words[0])
        if command is None:
            raise CommandError(f"Unknown command: {words[0]}")
        if not command.least <= len(words) - 1 <= command.most:
            raise CommandError(f"Wrong number of arguments. Usage: {command.usage}")
        try:
            return command.run(words[1:])
        except (LimitError, PartitionError) as error:
            raise CommandError(str(error)) from error

    # Servers and clients

    def _get_server_list(self, args: Sequence[str]) -> str:
        server = self._control.server
        return str(server.pid) if server else ""

    def _shutdown_server(self, args: Sequence[str]) -> str:
        if args[1:] not in ([], ["-f"]):
            raise CommandError(f"Usage: {self._table['shutdown_server'].usage}")
        server = self._server(args[0])
        if args[1:] or not server.client_partitions:
            self._control.stop_server()
        return ""

    def _get_server_status(self, args: Sequence[str]) -> str:
        return self._server(args[0]).status

    def _start_server(self, args: Sequence[str]) -> str:
        if args[0] != "-uid" or args[2:] not in ([], ["-mlopart"]):
            raise CommandError(f"Usage: {self._table['start_server'].usage}")
        uid = _number(args[1], "uid")
        if args[2:]:
            raise CommandError("-mlopart: the GPUs of this node have no locality domains")
        server = self._control.server
        if server is not None and server.uid != uid and not self._control.config.multiuser:
            if server.client_partitions:
                raise CommandError(f"Server {server.pid} of user {server.uid} still has clients")
            self._control.stop_server()
        if self._control.server is None:
            self._control.start_server(uid)
        return ""

    def _get_client_list(self, args: Sequence[str]) -> str:
        return _lines(str(client["pid"]) for client in self._server(args[0]).clients())

    def _get_device_client_list(self, args: Sequence[str]) -> str:
        server = self._server(args[0]) if args else self._control.server
        if server is None:
            return ""
        clients = server.clients()
        rows = []
        for device in server.devices:
            users = [str(each["pid"]) for each in clients if device.uuid in each["devices"]]
            rows.append(f"{device.uuid}: {' '.join(users)}".rstrip())
        return _lines(rows)

    def _ps(self, args: Sequence[str]) -> str:
        wanted = None
        if args:
            if len(args) != 2 or args[0] != "-p":
                raise CommandError(f"Usage: {self._table['ps'].usage}")
            wanted = _number(args[1], "client pid")
        rows = ["PID       ID    SERVER    DEVICE                  NAMESPACE   COMMAND"]
        server = self._control.server
        for client in server.clients() if server else ():
            if server and wanted in (None, client["pid"]):
                rows += _ps_rows(client, server.pid)
        return _lines(rows)

    def _terminate_client(self, args: Sequence[str]) -> str:
        server = self._server(args[0])
        pid = _number(args[1], "client pid")
        if not server.call(op="terminate", pid=pid).get("done"):
            raise CommandError(f"Server {server.pid} has no client {pid}")
        return "0"

    def _device_query(self, args: Sequence[str]) -> str:
        numbers = [word for word in args if word != "--csv"]
        if len(numbers) > 1 or args.count("--csv") > 1:
            raise CommandError(f"Usage: {self._table['device_query'].usage}")
        server = self._server(numbers[0]) if numbers else self._control.server
        devices = server.devices if server else self._control.devices()
        rows = [("Ordinal", "UUID", "Name", "SMs")]
        rows += [
            (str(ordinal), device.uuid, device.name, str(device.sms))
            for ordinal, device in enumerate(devices)
        ]
        if "--csv" in args:
            return _lines(",".join(row) for row in rows)
        return _lines(_table(rows))

    def _quit(self, args: Sequence[str]) -> str:
        self._control.shut_down()
        return ""

    # Limits

    def _set_default_percentage(self, args: Sequence[str]) -> str:
        percentage = parse_whole_percentage(args[0])
        self._control.defaults = replace(self._control.defaults, percentage=percentage)
        return f"{percentage:.1f}"

    def _get_default_percentage(self, args: Sequence[str]) -> str:
        return f"{self._control.defaults.percentage:.1f}"

    def _set_percentage(self, args: Sequence[str]) -> str:
        server = self._server(args[0])
        percentage = parse_whole_percentage(args[1])
        server.settings = replace(server.settings, percentage=percentage)
        return f"{percentage:.1f}"

    def _get_percentage(self, args: Sequence[str]) -> str:
        return f"{self._server(args[0]).settings.percentage:.1f}"

    def _set_default_pinned(self, args: Sequence[str]) -> str:
        limit = parse_memory(args[1], self._control.config.branch)
        self._control.defaults = self._control.defaults.with_pinned(args[0], limit)
        return ""

    def _get_default_pinned(self, args: Sequence[str]) -> str:
        limit = self._control.defaults.pinned_for(args[0])
        return limit.text if limit else ""

    def _set_pinned(self, args: Sequence[str]) -> str:
        server = self._server(args[0])
        limit = parse_memory(args[2], self._control.config.branch)
        server.settings = server.settings.with_pinned(_device(server, args[1]).uuid, limit)
        return ""

    def _get_pinned(self, args: Sequence[str]) -> str:
        server = self._server(args[0])
        limit = server.settings.pinned.get(_device(server, args[1]).uuid)
        return limit.text if limit else ""

    def _set_priority(self, args: Sequence[str]) -> str:
        if args[0] not in ("0", "1"):
            raise CommandError(f"client priority {args[0]!r} is neither 0 (normal) nor 1 (below)")
        self._control.defaults = replace(self._control.defaults, priority=int(args[0]))
        return ""

    def _get_priority(self, args: Sequence[str]) -> str:
        return str(self._control.defaults.priority)

    # Static partitions

    def _partition(self, args: Sequence[str]) -> str:
        if not self._control.config.static_partitioning:
            raise CommandError("sm_partition requires a daemon with --static-partitioning")
        verb, uuid, last = args
        device = find(self._control.devices(), uuid)
        if device is None or uuid.isdigit():
            raise CommandError(f"no GPU has the UUID {uuid!r}")
        if verb == "add":
            return self._control.partitions.add(device, _number(last, "chunks")).name
        if verb != "rm":
            raise CommandError(f"Usage: {self._table['sm_partition'].usage}")
        partition = self._control.partitions.find(f"{device.uuid}/{last}")
        if partition is None:
            raise CommandError(f"{device.uuid} has no partition {last!r}")
        if self._control.uses(partition):
            raise CommandError(f"partition {partition.name} still has clients")
        self._control.partitions.remove(partition)
        return ""

    def _lspart(self, args: Sequence[str]) -> str:
        if not self._control.config.static_partitioning:
            raise CommandError("lspart requires a daemon with --static-partitioning")
        rows: list[tuple[str, ...]] = [
            ("GPU", "Partition", "Free chunks", "Used chunks", "Free SMs", "Used SMs", "Clients")
        ]
        for device in self._control.devices():
            rows += self._partition_rows(device)
        return _lines(_table(rows))

    def _partition_rows(self, device: Device) -> list[tuple[str, ...]]:
        partitions = self._control.partitions
        free = partitions.free_chunks(device)
        used = sum(each.chunks for each in partitions.of(device))
        size = device.sms_per_chunk or 0
        short = _short(device.uuid)
        whole = (short, "-", str(free), str(used), str(free * size), str(used * size), "-")
        parts = [
            (short, each.identifier, "-", str(each.chunks), "-", str(each.sms),
             "Yes" if self._control.uses(each) else "-")
            for each in partitions.of(device)
        ]  # fmt: skip
        return [whole, *parts]

    def _server(self, text: str) -> ServerHandle:
        pid = _number(text, "server pid")
        server = self._control.server
        if server is None or server.pid != pid:
            raise CommandError(f"Server {pid} does not exist")
        return server


def _device(server: ServerHandle, key: str) -> Device:
    device = find(server.devices, key)
    if device is None:
        raise CommandError(f"Server {server.pid} has no device {key!r}")
    return device


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise CommandError(f"{what} {text!r} is not a whole number")
    return int(text)


def _ps_rows(client: dict[str, Any], server: int) -> list[str]:
    namespace = process.pid_namespace(client["pid"])
    return [
        f"{client['pid']:<10}{client['token']:<6}{server:<10}{_short(uuid):<24}"
        f"{namespace:<12}{client['command']}"
        for uuid in client["devices"] or ["-"]
    ]


def _short(uuid: str) -> str:
    """The first three groups of a UUID, as in the tables of MPS."""
    return "-".join(uuid.split("-")[:4])


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(rows)
