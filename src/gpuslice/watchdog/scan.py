"""Reads which processes use which GPUs, and in which containers they are. Blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.gpus.nvml import Nvml, NvmlError
from gpuslice.watchdog.attribution import GpuProcess
from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.container_names import ContainerName, read_container_names
from gpuslice.watchdog.process_files import PROC, ContainedProcess, read_process, read_process_id

# More cannot be at work on one GPU; a driver that lists more is not believed.
_MOST_PROCESSES = 4096


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    processes: tuple[GpuProcess, ...] = ()
    # UUIDs of GPUs that cannot be read now, and why.
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Containers:
    # By pid.
    contained: Mapping[int, ContainedProcess]
    names: Mapping[ContainerId, ContainerName]
    # Processes that the driver lists and this program cannot see.
    hidden: int


def read_gpu_processes(nvml: Nvml | None, indices: Mapping[str, int]) -> GpuProcesses:
    """`indices` of the GPUs, by UUID."""
    found: list[GpuProcess] = []
    unread: dict[str, str] = {}
    for uuid, index in indices.items():
        try:
            if nvml is None:
                raise NvmlError("the driver is not open")
            gpu = nvml.gpu(index)
            # The driver may have been reopened with another order.
            if gpu.uuid() != uuid:
                raise NvmlError(f"GPU {index} is another one")
            processes = gpu.processes()
        except NvmlError as error:
            unread[uuid] = str(error)
            continue
        if len(processes) > _MOST_PROCESSES:
            unread[uuid] = f"the driver lists {len(processes)} processes"
        else:
            found += [GpuProcess(uuid, one.pid, one.used_bytes) for one in processes]
    return GpuProcesses(tuple(found), unread)


def read_containers(pids: Iterable[int], container_logs: Path, proc: Path = PROC) -> Containers:
    """Raises OSError if the names of containers cannot be read."""
    wanted = list(pids)
    visible = {pid for pid in wanted if pid > 0 and read_process_id(pid, proc) is not None}
    read = ((pid, read_process(pid, proc)) for pid in sorted(visible))
    contained = {pid: process for pid, process in read if process is not None}
    ids = {process.container for process in contained.values()}
    names = read_container_names(container_logs, ids) if ids else {}
    return Containers(contained, names, sum(pid not in visible for pid in wanted))
