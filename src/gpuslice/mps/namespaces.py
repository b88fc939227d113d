"""Namespaces of MPS (protocol 3, drivers from 615 on): commands and answers. Pure.

A daemon has one server, for its one GPU. A container is in a namespace of that server: the one
whose directory it gets as its pipe directory. A program cannot exceed the threads of its namespace,
whatever its environment is.
"""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuslice.slicing.limits import Limits

SERVER = "gpu"
# Clients are in it that do not use the directory of a namespace.
DEFAULT = "default"
READY = "Ready"
# Little: such a client found the wrong socket.
DEFAULT_THREADS_PERCENT = 10

_FORMAT = "--format=csv"
_ALL_THREADS = 100
# The names of containers, see `cdi.bound_specs.device_name`.
_OWN_NAME = re.compile(r"c[0-9a-f]{31}")
_MEMORY = re.compile(r"(\d+)\s*([KMG])i?B?")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}
# Daemons print one decimal.
_ROUNDING = 0.05

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

LIST_SERVERS = ("server", "list", _FORMAT)
LIST_NAMESPACES = ("namespace", "list", f"--server={SERVER}", _FORMAT)
LIST_CLIENTS = ("client", "list", _FORMAT)


class UnexpectedTable(Exception):
    """The message says what the daemon prints instead of a table."""


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """Whether the daemon of a GPU has namespaces."""

    # Otherwise a daemon without them is used if they do not work as documented.
    required: bool
    # The limits of clients that are in no container's namespace.
    others: Limits


@dataclass(frozen=True, slots=True)
class Namespace:
    """The namespace of a container."""

    # The pipe directory of the daemon.
    pipe: str
    name: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Listed:
    """Limits as the daemon prints them."""

    memory: str
    threads: str

    def holds(self, limits: Limits) -> bool:
        """Whether they are these limits. Whole GiB may be rounded down."""
        return self._holds_memory(limits.memory_mib) and self._holds_threads(limits.threads_percent)

    def __str__(self) -> str:
        return f"memory {self.memory or 'not set'}, threads {self.threads or 'not set'}"

    def _holds_memory(self, mib: int) -> bool:
        found = _MEMORY.fullmatch(self.memory)
        if found is None:
            return False
        unit = _MIB[found[2]]
        return mib - max(unit, 1) < int(found[1]) * unit <= mib

    def _holds_threads(self, percent: int | None) -> bool:
        try:
            found = float(self.threads.rstrip("% "))
        except ValueError:
            return False
        return abs(found - _percent(percent)) <= _ROUNDING


def create_server(gpu: str, limits: Limits) -> tuple[str, ...]:
    """Its limits are those of its default namespace, from its first client on."""
    return ("server", "create", SERVER, f"--allowed-devices={gpu}", *_options(limits))


def create_namespace(name: str, limits: Limits) -> tuple[str, ...]:
    return ("namespace", "create", name, f"--server={SERVER}", *_options(limits))


def set_namespace(name: str, limits: Limits) -> tuple[str, ...]:
    return ("namespace", "set", name, f"--server={SERVER}", *_options(limits))


def delete_namespace(name: str) -> tuple[str, ...]:
    return ("namespace", "delete", name, f"--server={SERVER}")


def terminate_client(pid: int) -> tuple[str, ...]:
    return ("client", "terminate", str(pid))


def namespace_directory(pipe: str, name: str) -> str:
    return posixpath.join(pipe, SERVER, name)


def status_of_server(text: str) -> str | None:
    """None: there is no such server."""
    for row in _rows(text, ("name", "status")):
        if row["name"] == SERVER:
            return row["status"]
    return None


def listed_namespaces(text: str) -> dict[str, Listed]:
    """By name, including the default one."""
    columns = ("name", "server", "pinned-memory-limit", "active-thread-percentage")
    return {
        row["name"]: Listed(row[columns[2]], row[columns[3]])
        for row in _rows(text, columns)
        if row["server"] == SERVER
    }


def listed_clients(text: str) -> frozenset[int]:
    """Process ids."""
    return frozenset(int(row["pid"]) for row in _rows(text, ("pid",)) if row["pid"].isdecimal())


def unused_namespaces(listed: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Those of containers that are gone. Others than ours stay."""
    ours = {name for name in listed if _OWN_NAME.fullmatch(name)}
    return sorted(ours.difference(needed))


def namespace_in(variables: Mapping[str, str]) -> Namespace | None:
    """That of a container with these variables; None: it has none.

    So its CDI specification is all that must be kept to make its namespace again.
    """
    directory, name = posixpath.split(variables.get(PIPE_VARIABLE, ""))
    pipe, server = posixpath.split(directory)
    if server != SERVER or not _OWN_NAME.fullmatch(name):
        return None
    memory = variables.get(MEMORY_VARIABLE, "").partition("=")[2]
    threads = variables.get(THREADS_VARIABLE)
    if not memory.endswith("M") or not memory[:-1].isdecimal():
        return None
    percent = int(threads) if threads is not None and threads.isdecimal() else None
    return Namespace(pipe, name, Limits(int(memory[:-1]), percent))


def _options(limits: Limits) -> tuple[str, str]:
    return (
        f"--pinned-memory-limit={limits.memory_mib}M",
        f"--active-thread-percentage={_percent(limits.threads_percent)}",
    )


def _percent(threads: int | None) -> int:
    return _ALL_THREADS if threads is None else threads


def _rows(text: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """By the names of the columns: their order and number may change. Raises UnexpectedTable."""
    lines = list(csv.reader(text.splitlines(), skipinitialspace=True))
    names = [re.sub(r"[\s_]", "-", cell.strip().lower()) for cell in lines[0]] if lines else []
    missing = [column for column in columns if column not in names]
    if missing:
        raise UnexpectedTable(f"{text!r} has no column {', '.join(missing)}")
    rows = ([cell.strip() for cell in line] for line in lines[1:] if len(line) >= len(names))
    return [dict(zip(names, row, strict=False)) for row in rows]
