"""Cgroups of version 2 with pods and containers, in the layouts of the kubelet."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuslice_sim.kubelet import Pod


def _mount() -> Path | None:
    """Where this process may create cgroups of version 2."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                probe = Path(place) / f"gs-{uuid.uuid4().hex}"
                probe.mkdir()
                probe.rmdir()
                return Path(place)
    return None


MOUNT = _mount()
needs_unified = pytest.mark.skipif(
    MOUNT is None, reason="cgroups of version 2 cannot be created here"
)


@dataclass(frozen=True)
class Cgroup:
    path: Path
    scripts: Path

    @property
    def below_mount(self) -> str:
        assert MOUNT is not None
        return f"/{self.path.relative_to(MOUNT)}"

    def inner(self, *names: str) -> Cgroup:
        path = self.path.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return Cgroup(path, self.scripts)

    def pod(self, pod: Pod) -> Cgroup:
        return self.inner("kubepods", "burstable", f"pod{pod.uid}")

    def container(self, container_id: str = "") -> Cgroup:
        return self.inner(container_id or uuid.uuid4().hex * 2)

    def program(self, program: Path) -> Path:
        """A script that runs the program as a process of this cgroup."""
        script = self.scripts / f"{program.name}-{uuid.uuid4().hex}"
        script.write_text(
            f'#!/bin/sh\necho $$ > {self.path}/cgroup.procs || exit 1\nexec {program} "$@"\n'
        )
        script.chmod(0o755)
        return script


@contextlib.contextmanager
def cgroup_root(scripts: Path, *, dmem: bool = True) -> Iterator[Cgroup]:
    """A cgroup for one test, in place of the root of the node.

    `dmem`: as if the kernel had the controller of this name.
    """
    assert MOUNT is not None
    root = Cgroup(MOUNT / f"gs-{uuid.uuid4().hex}", scripts)
    root.path.mkdir()
    controllers = root.path / "cgroup.controllers"
    if dmem:
        listed = scripts / "controllers"
        listed.write_text("cpu memory pids dmem\n")
        subprocess.run(["mount", "--bind", listed, controllers], check=True)
    try:
        yield root
    finally:
        if dmem:
            subprocess.run(["umount", "--lazy", controllers], check=True)
        for path, _, _ in os.walk(root.path, topdown=False):
            _remove(Path(path))


def _remove(cgroup: Path) -> None:
    """Tests end their processes; what is left goes back to the root."""
    assert MOUNT is not None
    for _ in range(100):
        with contextlib.suppress(OSError):
            for pid in (cgroup / "cgroup.procs").read_text().split():
                (MOUNT / "cgroup.procs").write_text(pid)
            cgroup.rmdir()
            return
        time.sleep(0.05)  # the kernel has not removed a process that ended
