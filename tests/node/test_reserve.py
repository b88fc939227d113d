"""By default, every slice of a full GPU reaches its own limit."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient
from gpuslice_sim.process import BackgroundProcess

from .conftest import MakeRig
from .rig import ALL, BIN, RESOURCE, Rig

GIB = 1 << 30
CONTEXT_MIB = 300
EXCLUSIVE_PROCESS = 3


def agent(rig: Rig, *args: str) -> BackgroundProcess:
    return rig.run([str(BIN / "gpuslice"), "agent", ALL, *args], name="agent")


@pytest.mark.parametrize(("reserve", "units"), [("auto", 14), ("0", 15)])
def test_all_containers_of_a_full_gpu_can_use_their_memory(
    make_rig: MakeRig, reserve: str, units: int
) -> None:
    rig = make_rig("t4x2")
    for gpu in rig.node.gpus():
        rig.node.set({f"gpu.{gpu.index}.compute_mode": EXCLUSIVE_PROCESS})
    flags = [] if reserve == "auto" else [f"--memory-reserve={reserve}"]
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        agent(rig, "--mps-pipe", str(rig.pipe), *flags),
        ExitStack() as held,
    ):
        rig.wait_for_limits()
        uuid = rig.node.gpus()[0].uuid
        assert rig.healthy_units(uuid) == units
        for first in (0, 5):
            answer = rig.allocate(RESOURCE, *(f"{uuid}-_-{first + n}" for n in range(5)))
            size = f"{5 * 1024 - CONTEXT_MIB}MiB"
            client = HeldClient(rig.node.bin / "simcuda", "--alloc", size, env=dict(answer.envs))
            assert held.enter_context(client).ready()["total_bytes"] == 5 * GIB
        # The last one, on a GPU whose other slices are in use.
        answer = rig.allocate(RESOURCE, *(f"{uuid}-_-{n}" for n in range(10, units)))
        filled = rig.simcuda(answer, "fill")
        assert filled["context_bytes"] == CONTEXT_MIB << 20
        reached = filled["total_bytes"] == (units - 10) * GIB
        assert reached is (reserve == "auto")


def test_memory_that_is_only_counted_is_not_reserved(rig: Rig) -> None:
    with agent(rig):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.healthy_units(rig.node.gpus()[0].uuid) == 15
