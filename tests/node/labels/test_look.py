"""What the simulated driver and kernel say, in labels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice_sim.node import SimNode, create

SCRIPT = """
import json, sys
from pathlib import Path
from gpuslice.config.settings import Settings
from gpuslice.labels.look import Look
from gpuslice.slicing.rules import MigStrategy, Rules
root, strategy = Path(sys.argv[1]), MigStrategy(sys.argv[2])
settings = Settings(rules=Rules(mig_strategy=strategy))
print(json.dumps(Look(settings, None, root / "sys", root / "proc").labels()))
"""


def look(node: SimNode, strategy: str = "none") -> dict[str, str]:
    """In a process of its own: it has one driver library for life, and each node has its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(node.root), strategy],
        env=node.env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return {k.removeprefix("nvidia.com/"): v for k, v in json.loads(done.stdout).items()}


def test_the_mode_comes_from_the_kernel(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "t4x2")
    assert look(node)["gpu.mode"] == "compute"
    for function in (node.root / "sys/bus/pci/devices").iterdir():
        (function / "class").write_text("0x030000\n")
    assert look(node)["gpu.mode"] == "graphics"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("none", {"gpu.count": "2", "gpu.replicas": "0", "mig.capable": "true"}),
        (
            "single",
            {
                "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
                "gpu.count": "14",
                "gpu.memory": "4864",
                "gpu.multiprocessors": "14",
                "gpuslice.io/resource.nvidia.com_gpu.capacity": "14",
            },
        ),
        (
            "mixed",
            {
                "mig-1g.5gb.count": "14",
                "mig-1g.5gb.engines.copy": "1",
                "gpuslice.io/resource.nvidia.com_mig-1g.5gb.devices": "14",
            },
        ),
    ],
)
def test_mig_devices_are_told_by_strategy(
    tmp_path: Path, strategy: str, expected: dict[str, str]
) -> None:
    node = create(tmp_path / "node", "a100x2-mig-single")
    assert expected.items() <= look(node, strategy).items()


def test_a_layout_that_does_not_fit_the_strategy_is_labelled_and_no_error(tmp_path: Path) -> None:
    found = look(create(tmp_path / "node", "a100x2-mig-mixed"), "single")
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert found["gpu.replicas"] == "0"
    assert not [key for key in found if key.startswith("gpuslice.io/resource.")]


def test_a_gpu_that_does_not_answer_is_not_counted(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "mixed")
    node.faults.lost(0)
    found = look(node)
    assert found["gpu.count"] == "1"
    assert found["gpuslice.io/gpu.Tesla-T4.count"] == "1"


def test_the_fabric_is_read_from_drivers_that_dropped_the_first_call_for_it(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "t4x2")
    for index in range(2):
        node.set(
            {
                f"gpu.{index}.fabric.state": 3,
                f"gpu.{index}.fabric.cluster": "5e5c2d80-1234-4000-8000-00000000abcd",
                f"gpu.{index}.fabric.clique": 1,
            }
        )
        node.faults.call(index, "nvmlDeviceGetGpuFabricInfo", "FUNCTION_NOT_FOUND")
    assert look(node)["gpu.clique"] == "5e5c2d80-1234-4000-8000-00000000abcd.1"


def test_a_gpu_that_has_not_joined_its_fabric_yet_names_no_clique(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "t4x2")
    node.set(
        {"gpu.0.fabric.state": 2, "gpu.0.fabric.cluster": "5e5c2d80-1234-4000-8000-00000000abcd"}
    )
    assert "gpu.clique" not in look(node)
