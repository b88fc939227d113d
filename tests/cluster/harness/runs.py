"""A run of the harness: its directory, and what it leaves on the machine outside of it.

Everything a run makes carries the run's id: the directory /tmp/gsc-<id>, the cgroups
gsc-<id>-<node> and the bridges gsc<id><n>. The directory is locked for as long as the run lives, so
the next run can tell what a dead one left behind, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

_PLACE = Path("/tmp")  # short, for the paths of sockets
_CGROUPS = Path("/sys/fs/cgroup")
_SUBNET = "subnet"
_DIRECTORY = re.compile(r"gsc-(?P<id>[0-9a-f]{6})")
_CGROUP = re.compile(r"gsc-(?P<id>[0-9a-f]{6})-.+")
_BRIDGE = re.compile(r"gsc(?P<id>[0-9a-f]{6})\d+")


class Run:
    """The directory of this run, locked."""

    def __init__(self) -> None:
        # A directory that is not locked yet would be swept by another run that starts now.
        with _one_at_a_time():
            sweep()
            self.id = secrets.token_hex(3)
            self.directory = _PLACE / f"gsc-{self.id}"
            self.directory.mkdir(mode=0o755)
            self._lock = _try_lock(self.directory)
            self.subnet_octet = _free_subnet()
            (self.directory / _SUBNET).write_text(str(self.subnet_octet))
        self.logs = self.directory / "log"
        self.logs.mkdir()

    def cgroup(self, node: str) -> str:
        return f"gsc-{self.id}-{node}"

    def bridge(self, index: int) -> str:
        return f"gsc{self.id}{index}"

    def close(self, keep_logs: Path) -> Path:
        """Removes everything; the logs move below `keep_logs`, and their new place is returned."""
        keep_logs.mkdir(parents=True, exist_ok=True)
        for old in sorted(keep_logs.iterdir())[:-4]:
            shutil.rmtree(old, ignore_errors=True)
        kept = keep_logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{self.id}"
        shutil.move(self.logs, kept)
        with _one_at_a_time():  # half removed, it would look like one that a dead run left
            _remove(self.id)
        if self._lock is not None:
            self._lock.close()
        return kept


def sweep() -> None:
    """Removes what dead runs left."""
    for run in _known() - _living():
        _remove(run)


def make_cgroup(name: str) -> None:
    """In every hierarchy; a new cpuset takes no process until it has CPUs and memory nodes."""
    for hierarchy in _hierarchies():
        cgroup = hierarchy / name
        cgroup.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            inherited = hierarchy / setting
            if inherited.exists():
                (cgroup / setting).write_text(inherited.read_text())


def remove_cgroup(name: str) -> None:
    deadline = time.monotonic() + 90
    for hierarchy in _hierarchies():
        while (hierarchy / name).exists():
            try:
                for directory, _, _ in os.walk(hierarchy / name, topdown=False):
                    Path(directory).rmdir()
            except OSError:  # its last process is just ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def make_bridge(name: str, address: str) -> None:
    _ip("link", "add", "name", name, "type", "bridge")
    _ip("address", "add", f"{address}/24", "dev", name)
    _ip("link", "set", name, "up")


def remove_bridge(name: str) -> None:
    if name in _interfaces():
        _ip("link", "delete", name)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (_PLACE / "gsc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _free_subnet() -> int:
    """The second octet of a /16 in 10/8 that no interface of this machine has, nor another run."""
    shown = json.loads(_ip("-json", "address", "show"))
    addresses = {a["local"] for link in shown for a in link.get("addr_info", [])}
    taken = {int(a.split(".")[1]) for a in addresses if a.startswith("10.")}
    taken |= {int(file.read_text()) for file in _PLACE.glob(f"gsc-*/{_SUBNET}")}
    return secrets.choice([octet for octet in range(128, 228) if octet not in taken])


def _known() -> set[str]:
    cgroups = [path.name for hierarchy in _hierarchies() for path in hierarchy.iterdir()]
    return set(_directories()) | _ids(_CGROUP, cgroups) | _ids(_BRIDGE, _interfaces())


def _living() -> set[str]:
    living = set()
    for run, directory in _directories().items():
        lock = _try_lock(directory)
        if lock is None:
            living.add(run)
        else:
            lock.close()
    return living


def _directories() -> dict[str, Path]:
    """By the id of their run; others may use names that only look alike."""
    return {
        match["id"]: path
        for path in _PLACE.iterdir()
        if (match := _DIRECTORY.fullmatch(path.name)) and path.is_dir()
    }


def _ids(pattern: re.Pattern[str], names: Iterable[str]) -> set[str]:
    return {match["id"] for name in names if (match := pattern.fullmatch(name))}


def _try_lock(directory: Path) -> IO[str] | None:
    lock = (directory / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove(run: str) -> None:
    for hierarchy in _hierarchies():
        for cgroup in hierarchy.glob(f"gsc-{run}-*"):
            remove_cgroup(cgroup.name)
    for interface in _interfaces():
        if interface.startswith(f"gsc{run}"):
            remove_bridge(interface)
    shutil.rmtree(_PLACE / f"gsc-{run}", ignore_errors=True)


def _hierarchies() -> list[Path]:
    """The one of cgroup v2, or all of v1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return sorted(path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())


def _interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
