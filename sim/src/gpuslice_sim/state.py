"""Reads and changes the state of a simulated node, which the driver library reads.

Keys in addition to those in `docs/simulation.md` (`<i>` a GPU, `<j>` a MIG device, `<l>` a link):

====================================  ============================================================
`enumerate.device_nodes`              1: if /dev/nvidiactl exists, only GPUs whose /dev/nvidiaN
                                      exists are enumerated (as in a container)
`numa.count`, `numa.<n>.cpus`         NUMA nodes and their processors, `0-31,64-95`
`gpu.<i>.model`                       key of the model in models.toml
`gpu.<i>.memory.bar1`, `.bus_width`   bytes; bits
`gpu.<i>.pci.device_id`, …            as in NVML; `pci.subsystem_id`, `pcie.gen`, `.width`
`gpu.<i>.pcie.switch`, `.pcie.root`   GPUs with the same number share it; -1 = none
`gpu.<i>.module_id`, `.vbios`, …      `part_number`, `inforom`
`gpu.<i>.temperature`, `.fan`         degrees (and `.max`, `.slowdown`, `.shutdown`, `.memory`); %
`gpu.<i>.power.*`                     mW: `usage`, `limit`, `default`, `min`, `max`; `energy` in mJ
`gpu.<i>.clock.*`, `.clock.max.*`     MHz: `graphics`, `sm`, `memory`, `video`; `pstate`
`gpu.<i>.persistence`                 persistence mode
`gpu.<i>.utilization.*`               percent: `gpu`, `memory` (default: sum of the processes),
                                      `encoder`, `decoder`, `jpeg`, `ofa`
`gpu.<i>.ecc.mode`, `.ecc.pending`    missing = the GPU has no ECC
`gpu.<i>.ecc.<c>.<t>`                 DRAM errors: `corrected`/`uncorrected`, `volatile`/`aggregate`
`gpu.<i>.ecc.sram.<c>.<t>`            the same for SRAM; `ecc.sram.threshold` 1 = exceeded
`gpu.<i>.remap.*`                     `corrected`, `uncorrected`, `pending`, `failure`, `histogram`
                                      (max,high,partial,low,none); Ampere and newer
`gpu.<i>.retired.*`                   `sbe`, `dbe`, `pending`: pages, before Ampere
`gpu.<i>.recovery_action`             0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, …
`gpu.<i>.nvlink.count`, …             `version`, `speed` (Mbit/s)
`gpu.<i>.nvlink.<l>`                  `gpu:<bus id>`, `switch:<bus id>` or `off`
`gpu.<i>.fabric.*`                    `state` (missing = no fabric), `status`, `cluster`, `clique`
`gpu.<i>.fault.<function>`            NVML return code of this function for this GPU
`fault.hang[.<function>]`             1 = NVML calls do not return: all, or those of one function;
                                      also below `gpu.<i>.`, for the calls of one GPU
`gpu.<i>.events.nameless`             1: its events do not name the GPU
`gpu.<i>.pci.driver`                  kernel driver of a GPU that is not present; `-` = unbound
`gpu.<i>.limits.<cgroup>`             driver 615: `<soft> <hard>` bytes for a cgroup (path below
                                      /sys/fs/cgroup, with its leading slash)
`limits.flat`                         1: limits of cgroups do not apply to those below (a kernel
                                      without the dmem controller)
`gpu.<i>.limits.ignored`              1: limits of cgroups are accepted and not set
`gpu.<i>.mig.capable`, `.mode`, …     `pending`, `max` devices, `count` of devices
`gpu.<i>.mig.profile.<number>`        id, slices, max, SMs, MiB, engines (5), memory slices,
                                      possible starts, name
`gpu.<i>.mig.<j>.*`                   `uuid`, `gi`, `ci`, `profile` (number), `start`
====================================  ============================================================
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice_sim.errors import SimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Value = str | int


@dataclass(frozen=True)
class Process:
    """A process on a GPU. `kind` is C (compute), M+C (MPS client) or G (graphics)."""

    pid: int
    gpu: str
    kind: str = "C"
    used_bytes: int = 0
    sm_percent: int = 0
    memory_percent: int = 0
    name: str = ""
    gi: int | None = None
    ci: int | None = None
    invented: bool = False


class State:
    """Reads and changes the state of the node in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "state"
        if not (self._directory / "node").is_file():
            raise SimError(
                f"{directory} is not a simulated node (state/node is missing): "
                f"create one with `gpuslice-sim create {directory} --profile t4x2`"
            )

    def values(self) -> dict[str, str]:
        values = parse((self._directory / "node").read_text(errors="surrogateescape"))
        overrides = self._directory / "overrides"
        if overrides.exists():
            values.update(parse(overrides.read_text(errors="surrogateescape")))
        return values

    def override(self, values: Mapping[str, Value]) -> None:
        """Changes keys for all processes atomically: readers see all changes or none."""
        append_together(self._directory / "overrides", render(values))

    def add_event(
        self, gpu: int, kind: int, data: int, gi: int | None = None, ci: int | None = None
    ) -> None:
        instance = " ".join("-" if part is None else str(part) for part in (gi, ci))
        append(self._directory / "events", f"{gpu} {kind} {data} {instance}\n")

    def processes(self) -> list[Process]:
        """Live processes, by PID and GPU."""
        found = [self._read_process(path) for path in self._process_files()]
        return sorted((p for p in found if p), key=lambda p: (p.pid, p.gpu))

    def write_process(self, process: Process) -> None:
        """Replaces the file of a process, which is valid until the PID ends or it is removed."""
        fields: dict[str, Value] = {
            "pid": process.pid,
            "gpu": process.gpu,
            "type": process.kind,
            "used": process.used_bytes,
            "sm": process.sm_percent,
            "memory": process.memory_percent,
            "name": process.name,
        }
        if process.gi is not None:
            fields |= {"gi": process.gi, "ci": process.ci or 0}
        if process.invented:
            fields["live"] = 0
        path = self._process_path(process.pid, process.gpu)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(render(fields))
        fresh.replace(path)

    def remove_process(self, pid: int, gpu: str) -> bool:
        try:
            self._process_path(pid, gpu).unlink()
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds state/lock: no other process checks for free memory and allocates meanwhile."""
        lock = os.open(self._directory / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _process_path(self, pid: int, gpu: str) -> Path:
        return self._directory / "procs" / f"{pid}-{gpu}"

    def _process_files(self) -> list[Path]:
        names = (self._directory / "procs").iterdir()
        return [path for path in names if not path.name.startswith(".")]

    def _read_process(self, path: Path) -> Process | None:
        try:
            with path.open() as file:
                fields = parse(file.read())
                alive = _is_alive(file.fileno(), fields)
        except FileNotFoundError:
            return None
        if not alive or "pid" not in fields or "gpu" not in fields:
            return None
        return Process(
            pid=int(fields["pid"]),
            gpu=fields["gpu"],
            kind=fields.get("type", "C"),
            used_bytes=int(fields.get("used", 0)),
            sm_percent=int(fields.get("sm", 0)),
            memory_percent=int(fields.get("memory", 0)),
            name=fields.get("name", ""),
            gi=int(fields["gi"]) if "gi" in fields else None,
            ci=int(fields["ci"]) if "ci" in fields else None,
            invented=fields.get("live") == "0",
        )


def parse(text: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key: value for key, equals, value in lines if equals}


def render(values: Mapping[str, Value]) -> str:
    for key, value in values.items():
        if "\n" in f"{key}{value}" or "=" in key:
            raise SimError(
                f"state key {key!r}, value {value!r} is not valid: remove newlines, and = in keys"
            )
    return "".join(f"{key}={value}\n" for key, value in values.items())


def append(path: Path, line: str) -> None:
    """Appends a line with one write(2). A reader that sees a part of it waits for the rest."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def append_together(path: Path, lines: str) -> None:
    """Appends lines so that readers see all of them or none.

    A file grows page by page, so a reader could see only the lines on the first page. If the lines
    do not fit on it, empty lines, which have no meaning, fill it.
    """
    # A driver may report text that is not UTF-8.
    text = lines.encode(errors="surrogateescape")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        room = mmap.PAGESIZE - os.fstat(file).st_size % mmap.PAGESIZE
        os.write(file, text if len(text) <= room else b"\n" * room + text)
    finally:
        os.close(file)


def _is_alive(file: int, fields: Mapping[str, str]) -> bool:
    match fields.get("live"):
        case "0":
            return True
        case "lock":
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    try:
        status = Path(f"/proc/{fields.get('pid', 0)}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
