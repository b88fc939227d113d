"""Driver 615 limits the memory of all processes of a cgroup together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient, run_client
from gpuslice_sim.node import SimNode
from tests.node.unified_cgroups import Cgroup, cgroup_root, needs_unified

from .conftest import Ask, MakeNode

pytestmark = needs_unified
MIB, GIB = 1 << 20, 1 << 30
EVERYTHING = (1 << 64) - 1
FULL = "CUDA_ERROR_OUT_OF_MEMORY"


def limit(ask: Ask, node: SimNode, cgroup: Cgroup, hard: int) -> list[int]:
    code = f"""
h = handles()[0]
path = {str(cgroup.path)!r}.encode()
nvmlDeviceSetMemoryLimits_v1(h, c_nvmlSetMemoryLimits_v1_t(path, 0, {hard}))
got = c_nvmlGetMemoryLimits_v1_t(path)
nvmlDeviceGetMemoryLimits_v1(h, got)
answer = [got.softLimit, got.hardLimit, got.currentUsed]
"""
    found: list[int] = ask(node, code)
    return found


@pytest.mark.parametrize("with_mps", [False, True])
def test_processes_of_a_cgroup_share_its_limit(
    make_node: MakeNode, ask: Ask, short_path: Path, with_mps: bool
) -> None:
    node = make_node("t4x2", driver=615)
    simcuda = node.bin / "simcuda"
    daemon = MpsDaemon(node, short_path / "pipe", short_path / "log")
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(short_path / "pipe")} if with_mps else {}
    with cgroup_root(short_path) as root:
        if with_mps:
            node.set({"gpu.0.compute_mode": 3, "gpu.1.compute_mode": 3})
            daemon.start()
        try:
            pod = root.inner("pod")
            one, two, elsewhere = pod.container(), pod.container(), root.inner("elsewhere")
            assert limit(ask, node, pod, 2 * GIB) == [0, 2 * GIB, 0]
            with HeldClient(one.program(simcuda), "--alloc", "1GiB", env=env) as first:
                used = GIB + int(first.ready()["devices"][0]["context_bytes"])
                # The limit of a cgroup above is enforced, and CUDA does not report it.
                second = run_client(two.program(simcuda), "fill", env=env)
                assert second.error == FULL
                assert second.report["total_bytes"] == 2 * GIB - used
                assert second.device["free_bytes"] > 10 * GIB
                assert limit(ask, node, pod, 2 * GIB) == [0, 2 * GIB, used]
                outside = run_client(elsewhere.program(simcuda), "alloc", "3GiB", env=env)
                assert outside.error is None
                # That of its own cgroup is reported.
                limit(ask, node, two, 512 * MIB)
                reported = run_client(two.program(simcuda), "info", env=env).report["devices"][0]
                assert reported["free_bytes"] == 512 * MIB - reported["context_bytes"]
                limit(ask, node, two, EVERYTHING)
            limit(ask, node, pod, EVERYTHING)
            assert run_client(two.program(simcuda), "alloc", "4GiB", env=env).error is None
        finally:
            if with_mps:
                daemon.stop()
