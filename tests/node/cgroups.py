"""Containers as the watchdog sees them: real cgroups, and the kubelet's links to logs."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuslice_sim.kubelet import Pod

_KUBEPODS = "kubepods"


def _hierarchy() -> Path | None:
    """A hierarchy of cgroups where this process may create some."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        # Version 2, or the simplest controller of version 1.
        if kind == "cgroup2" or (kind == "cgroup" and "pids" in options.split(",")):
            with contextlib.suppress(OSError):
                (Path(place) / _KUBEPODS).mkdir(exist_ok=True)
                return Path(place)
    return None


HIERARCHY = _hierarchy()
needs_cgroups = pytest.mark.skipif(HIERARCHY is None, reason="cgroups cannot be created here")


@dataclass(frozen=True)
class RunningContainer:
    """A container of a pod: processes are put into it."""

    cgroup: Path
    pod_uid: str
    container_id: str
    link: Path

    def add(self, pid: int) -> None:
        (self.cgroup / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def container(logs: Path, pod: Pod, name: str, pod_uid: str = "") -> Iterator[RunningContainer]:
    assert HIERARCHY is not None
    uid, container_id = pod_uid or str(uuid.uuid4()), uuid.uuid4().hex * 2
    of_pod = HIERARCHY / _KUBEPODS / f"pod{uid}"
    cgroup = of_pod / container_id
    cgroup.mkdir(parents=True)
    logs.mkdir(exist_ok=True)
    link = logs / f"{pod.name}_{pod.namespace}_{name}-{container_id}.log"
    link.symlink_to(f"/var/log/pods/{pod.namespace}_{pod.name}_{uid}/{name}/0.log")
    try:
        yield RunningContainer(cgroup, uid, container_id, link)
    finally:
        _empty(cgroup)
        cgroup.rmdir()
        link.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another container of the pod
            of_pod.rmdir()


def _empty(cgroup: Path) -> None:
    """Tests end their processes; what is left goes back to the root."""
    assert HIERARCHY is not None
    for pid in (cgroup / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (HIERARCHY / "cgroup.procs").write_text(pid)
