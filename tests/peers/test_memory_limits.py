"""NVIDIA's hook sets the memory limit of a container from the variables that we give it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpuslice.inject.memory_limit import driver_limit
from gpuslice.slicing.grant import grant
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.rules import MemoryRule
from gpuslice_sim.process import BackgroundProcess
from tests.node.rig import eventually
from tests.node.unified_cgroups import MOUNT, Cgroup, cgroup_root, needs_unified
from tests.unit.slicing.nodes import gpu

from .build import Peers
from .conftest import MakeNode

pytestmark = needs_unified
GIB = 1 << 30


def variables(units: int) -> dict[str, str]:
    pool, _ = memory_pool([gpu(0)], MemoryRule(limited=True))
    assert pool is not None
    return driver_limit(grant(pool, list(pool.owners)[:units])).env


def bundle(directory: Path, env: dict[str, str]) -> Path:
    """A container, as a runtime describes it."""
    process = {"args": ["sleep"], "cwd": "/", "env": [f"{k}={v}" for k, v in env.items()]}
    config = {"ociVersion": "1.2.0", "process": process, "root": {"path": "rootfs"}}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(("driver", "succeeds"), [(615, True), (570, False)])
def test_the_hook_limits_the_cgroup_of_the_container(
    make_node: MakeNode,
    peers: Peers,
    root_user: None,
    scratch: Path,
    driver: int,
    succeeds: bool,
) -> None:
    """With an older driver it fails, and so would the container: then it has no variables."""
    node = make_node("t4x2", driver=driver)
    uuid = node.gpus()[0].uuid
    with cgroup_root(scratch, dmem=False) as root:
        inside: Cgroup = root.inner("kubepods", "pod", "container")
        sleep = inside.program(Path("/bin/sleep"))
        with BackgroundProcess([str(sleep), "600"], env={}, log=scratch / "log") as process:
            members = inside.path / "cgroup.procs"
            eventually(lambda: str(process.pid) in members.read_text().split(), "the process")
            state = {
                "ociVersion": "1.2.0",
                "id": "c",
                "status": "creating",
                "pid": process.pid,
                "bundle": str(bundle(scratch, variables(2))),
            }
            # It expects cgroups of version 2 at the usual place.
            arguments = ["--driver-root", str(node.root), "--gpu-id", uuid]
            hook = [str(peers.cdi_hook), "apply-cuda-memory-limits", *arguments]
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c",
                 f'mount --bind {MOUNT} /sys/fs/cgroup && exec "$@"', "sh", *hook],
                env=node.env(),
                input=json.dumps(state),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )  # fmt: skip
            assert (done.returncode == 0) is succeeds, done.stderr
        found = node.state.values().get(f"gpu.0.limits.{inside.below_mount}")
        # No soft limit: nothing is reserved.
        assert found == (f"0 {2 * GIB}" if succeeds else None)
