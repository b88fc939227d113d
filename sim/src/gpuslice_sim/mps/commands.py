"""The commands of protocol version 2: arguments, effect, output.

As in the real program, a command is rarely an error: what it does not understand it ignores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuslice_sim.mps import process
from gpuslice_sim.mps.devices import find
from gpuslice_sim.mps.limits import scan_memory, scan_percentage
from gpuslice_sim.mps.partitions import PartitionError
from gpuslice_sim.mps.scan import Scanner
from gpuslice_sim.mps.settings import FIRST_BRANCH_WITH_UUID_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuslice_sim.mps.control import Control, ServerHandle
    from gpuslice_sim.mps.devices import Device

# Defaults have this many entries.
_DEVICES = 32
_OTHER_USER = "Only the root user may {what} another user's server."


class CommandError(Exception):
    """The daemon rejects a command."""


@dataclass(frozen=True)
class Caller:
    uid: int
    # Whether it uses the socket of root and the owner of the daemon.
    privileged: bool


class Commands:
    """Runs command lines against a daemon."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._caller = Caller(0, privileged=True)
        self._table: dict[str, Callable[[Scanner], str]] = {
            "get_server_list": self._get_server_list,
            "start_server": self._start_server,
            "shutdown_server": self._shutdown_server,
            "get_client_list": self._get_client_list,
            "get_device_client_list": self._get_device_client_list,
            "ps": self._ps,
            "set_default_active_thread_percentage": self._set_default_percentage,
            "get_default_active_thread_percentage": self._get_default_percentage,
            "set_active_thread_percentage": self._set_percentage,
            "get_active_thread_percentage": self._get_percentage,
            "set_default_device_pinned_mem_limit": self._set_default_pinned,
            "get_default_device_pinned_mem_limit": self._get_default_pinned,
            "set_device_pinned_mem_limit": self._set_pinned,
            "get_device_pinned_mem_limit": self._get_pinned,
            "set_default_client_priority": self._set_priority,
            "get_default_client_priority": self._get_priority,
            "terminate_client": self._terminate_client,
            "quit": self._quit,
        }
        if self._branch >= 550:
            self._table["get_server_status"] = self._get_server_status
        if self._branch >= 560:
            self._table["device_query"] = self._device_query
        if self._branch >= 590:
            self._table["sm_partition"] = self._partition
            self._table["lspart"] = self._lspart

    def run(self, text: str, caller: Caller) -> str:
        """Returns the output without a final newline. Raises CommandError."""
        scanner = Scanner(text)
        name = scanner.word() or ""
        command = self._table.get(name)
        if command is None:
            raise CommandError(f'Unknown command "{name}"')
        self._caller = caller
        try:
            return command(scanner)
        except PartitionError as error:
            raise CommandError(str(error)) from error

    @property
    def _branch(self) -> int:
        return self._control.config.branch

    # Servers and clients

    def _get_server_list(self, scanner: Scanner) -> str:
        server = self._control.server
        return str(server.pid) if server else ""

    def _shutdown_server(self, scanner: Scanner) -> str:
        server = self._server(scanner.integer() or 0)
        self._check_user_of(server, "shutdown")
        if scanner.word() == "-f" or not server.client_partitions:
            self._control.stop_server()
        return ""

    def _get_server_status(self, scanner: Scanner) -> str:
        pid = scanner.integer()
        if pid is None:
            raise CommandError("A server PID is required")
        return self._server(pid).status

    def _start_server(self, scanner: Scanner) -> str:
        option, uid = scanner.word(), scanner.integer()
        if option != "-uid" or uid is None:
            raise CommandError("A user id (UID) is required to start a new server")
        if self._caller.uid not in (0, uid):
            raise self._insufficient("Only the root user may start server for another user.")
        if uid < 0:
            return ""  # no such user, as the log of a real daemon says
        if scanner.word() == "-mlopart":
            raise CommandError("-mlopart: the GPUs of this node have no locality domains")
        server = self._control.server
        if server is not None and server.uid != uid and not self._control.config.multiuser:
            if server.client_partitions:
                raise CommandError(f"Server {server.pid} of user {server.uid} still has clients")
            self._control.stop_server()
        if self._control.server is None:
            self._control.start_server(uid)
        return ""

    def _get_client_list(self, scanner: Scanner) -> str:
        server = self._server(scanner.integer() or 0)
        return _lines(str(client["pid"]) for client in server.clients())

    def _get_device_client_list(self, scanner: Scanner) -> str:
        pid = scanner.integer()
        server = self._control.server if pid is None else self._server(pid)
        if server is None:
            return ""
        clients = server.clients()
        rows = []
        for device in server.devices:
            users = [str(each["pid"]) for each in clients if device.uuid in each["devices"]]
            rows.append(f"{device.uuid}: {' '.join(users)}".rstrip())
        return _lines(rows)

    def _ps(self, scanner: Scanner) -> str:
        server = self._control.server
        if (option := scanner.word()) is not None and option.startswith("-p"):
            pid = Scanner(option[2:]).integer() if option[2:] else scanner.integer()
            if server is None or server.pid != (pid or 0):
                raise CommandError(f"Server {pid or 0} not found\n" * 2)
        if server is None:
            raise CommandError("Server not found")
        rows = ["PID       ID    SERVER    DEVICE                  NAMESPACE   COMMAND"]
        for client in server.clients():
            rows += _ps_rows(client, server.pid)
        return _lines(rows)

    def _terminate_client(self, scanner: Scanner) -> str:
        wanted, pid = scanner.integer() or 0, scanner.integer() or 0
        server = self._control.server
        if server is None or server.pid != wanted:
            raise CommandError(f"Server {wanted} not found\nServer {wanted} not found!\n1")
        self._check_user_of(server, "terminate clients on")
        if not server.call(op="terminate", pid=pid).get("done"):
            raise CommandError(f"Invalid process {pid}!\n1")
        return "0"

    def _device_query(self, scanner: Scanner) -> str:
        words = []
        while (word := scanner.word()) is not None:
            words.append(word)
        numbers = [word for word in words if word != "--csv"]
        server = self._server(Scanner(numbers[0]).integer() or 0) if numbers else None
        devices = server.devices if server else self._control.devices()
        rows = [("Ordinal", "UUID", "Name", "SMs")]
        rows += [
            (str(ordinal), device.uuid, device.name, str(device.sms))
            for ordinal, device in enumerate(devices)
        ]
        if "--csv" in words:
            return _lines(",".join(row) for row in rows)
        return _lines(_table(rows))

    def _quit(self, scanner: Scanner) -> str:
        if not self._caller.privileged:
            raise CommandError("Not enough privilege to execute quit command")
        option, seconds = scanner.word(), scanner.integer()
        if option != "-t" or seconds is None:
            self._control.quit()
        else:
            self._control.log.write(f"quit command issued with timeout of {seconds}")
            self._control.quit(float(seconds))
        return ""

    # Limits

    def _set_default_percentage(self, scanner: Scanner) -> str:
        self._check_settings()
        percentage = self._percentage(scanner)
        if percentage is not None:
            self._control.defaults = replace(self._control.defaults, percentage=percentage)
        return f"{self._control.defaults.percentage:.1f}"

    def _get_default_percentage(self, scanner: Scanner) -> str:
        return f"{self._control.defaults.percentage:.1f}"

    def _set_percentage(self, scanner: Scanner) -> str:
        server = self._server(scanner.integer() or 0)
        self._check_user_of(server, "change settings for")
        percentage = self._percentage(scanner)
        if percentage is not None:
            server.settings = replace(server.settings, percentage=percentage)
        return f"{server.settings.percentage:.1f}"

    def _get_percentage(self, scanner: Scanner) -> str:
        return f"{self._server(scanner.integer() or 0).settings.percentage:.1f}"

    def _percentage(self, scanner: Scanner) -> float | None:
        percentage = scan_percentage(scanner)
        if percentage is None:
            self._control.log.write("Invalid percentage, expected between (0.0, 100.0]")
        return percentage

    def _set_default_pinned(self, scanner: Scanner) -> str:
        """A value that is not a number removes the limit."""
        self._check_settings()
        device = self._device_key(scanner)
        limit = scan_memory(scanner.word() or "", self._branch)
        if device is not None:
            self._control.defaults = self._control.defaults.with_pinned(device, limit)
        return ""

    def _get_default_pinned(self, scanner: Scanner) -> str:
        device = self._device_key(scanner)
        limit = self._control.defaults.pinned_for(device) if device is not None else None
        if limit is None:
            self._control.log.write("No default pinned memory limit set for the device!")
            return ""
        return limit.text

    def _set_pinned(self, scanner: Scanner) -> str:
        server = self._server(scanner.integer() or 0)
        self._check_user_of(server, "change settings for")
        uuid = self._device_of(server, scanner).uuid
        limit = scan_memory(scanner.word() or "", self._branch)
        server.settings = server.settings.with_pinned(uuid, limit)
        return ""

    def _get_pinned(self, scanner: Scanner) -> str:
        server = self._server(scanner.integer() or 0)
        limit = server.settings.pinned.get(self._device_of(server, scanner).uuid)
        return limit.text if limit else ""

    def _device_key(self, scanner: Scanner) -> str | None:
        """The number of a device, as text, or its UUID. What is no number is device 0."""
        if self._branch >= FIRST_BRANCH_WITH_UUID_KEYS and scanner.next_is("GPU-"):
            return scanner.word()
        number = scanner.integer() or 0
        return str(number) if 0 <= number < _DEVICES else None

    def _device_of(self, server: ServerHandle, scanner: Scanner) -> Device:
        key = self._device_key(scanner)
        device = None if key is None else find(server.devices, key)
        if device is None:
            raise CommandError("Invalid device ordinal!")
        return device

    def _set_priority(self, scanner: Scanner) -> str:
        self._check_settings()
        priority = scanner.integer() or 0
        if priority not in (0, 1):
            raise CommandError("Invalid priority value - must be 0 or 1!")
        self._control.defaults = replace(self._control.defaults, priority=priority)
        return ""

    def _get_priority(self, scanner: Scanner) -> str:
        return str(self._control.defaults.priority)

    # Privileges

    def _check_settings(self) -> None:
        """Before branch 550, every user could change the defaults of all."""
        if self._branch >= 550 and not self._caller.privileged:
            raise self._insufficient(
                "Control deamon settings can only be modified by the user started it or by the "
                "root user."
            )

    def _check_user_of(self, server: ServerHandle, what: str) -> None:
        if self._branch >= 550 and self._caller.uid not in (0, server.uid):
            raise self._insufficient(_OTHER_USER.format(what=what))

    def _insufficient(self, reason: str) -> CommandError:
        text = f"Insufficient privileges for UID {self._caller.uid}"
        return CommandError(f"{text}. {reason}" if self._branch >= 550 else text)

    # Static partitions

    def _partition(self, scanner: Scanner) -> str:
        if not self._control.config.static_partitioning:
            raise CommandError("sm_partition requires a daemon with --static-partitioning")
        verb, uuid, last = (scanner.word() or "" for _ in range(3))
        device = find(self._control.devices(), uuid)
        if device is None or uuid.isdigit():
            raise CommandError(f"no GPU has the UUID {uuid!r}")
        if verb == "add":
            return self._control.partitions.add(device, _number(last, "chunks")).name
        if verb != "rm":
            raise CommandError("Usage: sm_partition add <uuid> <chunks> | rm <uuid> <id>")
        partition = self._control.partitions.find(f"{device.uuid}/{last}")
        if partition is None:
            raise CommandError(f"{device.uuid} has no partition {last!r}")
        if self._control.uses(partition):
            raise CommandError(f"partition {partition.name} still has clients")
        self._control.partitions.remove(partition)
        return ""

    def _lspart(self, scanner: Scanner) -> str:
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

    def _server(self, pid: int) -> ServerHandle:
        server = self._control.server
        if server is None or server.pid != pid:
            raise CommandError(f"Server {pid} not found")
        return server


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
