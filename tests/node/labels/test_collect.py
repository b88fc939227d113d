"""Labels of what the simulated driver and kernel report."""

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
from gpuslice.gpus.inventory import Platform, read_inventory
from gpuslice.gpus.nvml import Nvml
from gpuslice.labels.collect import collect_labels, pools_or_none
from gpuslice.slicing.rules import MigStrategy, Rules
root, platform, strategy = Path(sys.argv[1]), Platform(sys.argv[2]), MigStrategy(sys.argv[3])
settings = Settings(rules=Rules(mig_strategy=strategy))
nvml = Nvml.open()
gpus, pools = (), ()
if platform is Platform.NVML:
    gpus = read_inventory(nvml, root / "sys", root / "proc").gpus
    pools = pools_or_none(gpus, settings)
print(json.dumps(collect_labels(nvml, platform, gpus, pools, settings, sysfs=root / "sys")))
"""


def collect(node: SimNode, strategy: str = "none", platform: str = "nvml") -> dict[str, str]:
    """In a process of its own: it can load one driver library only, and each node has its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(node.root), platform, strategy],
        env=node.env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return {k.removeprefix("nvidia.com/"): v for k, v in json.loads(done.stdout).items()}


def test_the_mode_is_read_from_sysfs(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "t4x2")
    assert collect(node)["gpu.mode"] == "compute"
    for function in (node.root / "sys/bus/pci/devices").iterdir():
        (function / "class").write_text("0x030000\n")
    assert collect(node)["gpu.mode"] == "graphics"


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
def test_mig_devices_are_labelled_by_strategy(
    tmp_path: Path, strategy: str, expected: dict[str, str]
) -> None:
    node = create(tmp_path / "node", "a100x2-mig-single")
    assert expected.items() <= collect(node, strategy).items()


def test_a_layout_that_does_not_fit_the_strategy_is_labelled_as_invalid(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "a100x2-mig-mixed")
    for gpu in (0, 1):
        node.faults.mig(gpu, ["3g.20gb", "1g.5gb"])
    found = collect(node, "single")
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert found["gpu.replicas"] == "0"
    assert not [key for key in found if key.startswith("gpuslice.io/resource.")]


def test_a_gpu_that_does_not_answer_is_not_counted(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "mixed")
    node.faults.lost(0)
    found = collect(node)
    assert found["gpu.count"] == "1"
    assert found["gpuslice.io/gpu.Tesla-T4.count"] == "1"


def test_the_fabric_is_read_from_drivers_without_the_older_function(tmp_path: Path) -> None:
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
    assert collect(node)["gpu.clique"] == "5e5c2d80-1234-4000-8000-00000000abcd.1"


def test_a_gpu_that_has_not_joined_its_fabric_has_no_clique(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "t4x2")
    node.set(
        {"gpu.0.fabric.state": 2, "gpu.0.fabric.cluster": "5e5c2d80-1234-4000-8000-00000000abcd"}
    )
    assert "gpu.clique" not in collect(node)


def test_the_gpus_behind_the_placeholder_of_wsl_are_read_from_nvml(tmp_path: Path) -> None:
    found = collect(create(tmp_path / "node", "t4x2"), platform="wsl")
    assert found["gpu.product"] == "Tesla-T4"
    assert found["gpu.count"] == "2"
    assert found["gpuslice.io/resource.nvidia.com_gpu.capacity"] == "2"
    assert found["cuda.driver-version.full"] == "570.124.06"
