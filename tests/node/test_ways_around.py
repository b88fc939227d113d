"""What a program reaches by its own environment, whatever its pod was given.

docs/limits.md states the results. A limit that holds where it is not expected to is a change of
that page, too.
"""

from __future__ import annotations

import pytest

from gpuslice_sim.mps.simcuda import run_client

from .managed_node import GIB, node, uuids
from .rig import RESOURCE, Rig, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]

GRANTED, ALL_SLICES = 2 * GIB, 14 * GIB
# What the driver and the MPS server leave of the GPU.
WHOLE_GPU = 14_884 << 20
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ELSEWHERE = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("changes", "reached"),
    [
        pytest.param({}, GRANTED, id="nothing changed"),
        pytest.param({MEMORY: None, THREADS: None}, ALL_SLICES, id="limits unset"),
        pytest.param({MEMORY: "0=100G", THREADS: "100"}, ALL_SLICES, id="limits raised"),
        pytest.param({MEMORY: f"{ELSEWHERE}=1G"}, WHOLE_GPU, id="limit of a foreign GPU"),
    ],
)
def test_how_much_memory_a_program_reaches_by_its_own_environment(
    rig: Rig, changes: dict[str, str | None], reached: int
) -> None:
    with node(rig):
        gpu = uuids(rig)[0]
        answer = rig.allocate(RESOURCE, f"{gpu}-_-0", f"{gpu}-_-1")
        env = dict(answer.envs) | {
            "CUDA_MPS_PIPE_DIRECTORY": str(rig.mps_root / gpu / "pipe"),
            "CUDA_VISIBLE_DEVICES": gpu,
        }
        changed = {name: text for name, text in (env | changes).items() if text is not None}
        filled = run_client(rig.node.bin / "simcuda", "fill", env=changed)
        assert filled.report["total_bytes"] == reached


def test_a_program_without_the_pipe_directory_gets_nothing_while_others_use_mps(rig: Rig) -> None:
    with node(rig):
        gpu = uuids(rig)[0]
        pipe = str(rig.mps_root / gpu / "pipe")
        simcuda = rig.node.bin / "simcuda"
        env = {"CUDA_VISIBLE_DEVICES": gpu}
        run_client(simcuda, "info", env=env | {"CUDA_MPS_PIPE_DIRECTORY": pipe})
        refused = run_client(simcuda, "info", env=env)
        assert refused.error == "CUDA_ERROR_DEVICE_UNAVAILABLE"
