from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.settings import Discovery
from gpuslice.gpus.platform import Platform, detect, stand_in_inventory
from gpuslice.slicing.device import Device


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    """A root whose libraries cannot be loaded, whatever the machine of the test has."""
    libraries = tmp_path / "driver" / "usr" / "lib64"
    libraries.mkdir(parents=True)
    for name in ("libdxcore.so", "libnvidia-ml.so.1"):
        (libraries / name).write_text("no library")
    return tmp_path / "driver"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return tmp_path / "system"


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_a_machine_that_says_nothing_is_one_with_nvml(driver_root: Path, system: Path) -> None:
    for discovery in (Discovery.AUTO, Discovery.NVML):
        assert detect(discovery, driver_root, None, system) is Platform.NVML


def test_tegra_is_known_by_its_release_file(driver_root: Path, system: Path) -> None:
    put(system / "etc" / "nv_tegra_release")
    assert detect(Discovery.AUTO, driver_root, None, system) is Platform.TEGRA
    assert detect(Discovery.NVML, driver_root, None, system) is Platform.NVML


@pytest.mark.parametrize(
    ("family", "platform"), [("Tegra\n", Platform.TEGRA), ("Qualcomm\n", Platform.NVML)]
)
def test_tegra_is_known_by_the_family_of_its_chip(
    family: str, platform: Platform, driver_root: Path, system: Path
) -> None:
    put(system / "sys" / "devices" / "soc0" / "family", family)
    assert detect(Discovery.AUTO, driver_root, None, system) is platform


def test_tegra_can_be_demanded(driver_root: Path, system: Path) -> None:
    assert detect(Discovery.TEGRA, driver_root, None, system) is Platform.TEGRA


def test_one_device_stands_for_all_gpus_of_wsl() -> None:
    inventory = stand_in_inventory(Platform.WSL, None)
    assert inventory.stand_ins == (Device("all", "all", gpu="all", nodes=("/dev/dxg",)),)
    assert inventory.gpus == ()


def test_one_device_without_nodes_stands_for_the_gpu_of_tegra() -> None:
    inventory = stand_in_inventory(Platform.TEGRA, None)
    assert inventory.stand_ins == (Device("tegra", "0", gpu="tegra", model="tegra"),)
    assert inventory.gpus == ()


def test_gpus_that_nvml_knows_need_no_stand_in() -> None:
    assert stand_in_inventory(Platform.NVML, None).stand_ins == ()
