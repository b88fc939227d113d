from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.settings import Discovery
from gpuslice.gpus.inventory import Platform
from gpuslice.gpus.platform import detect, placeholder_inventory
from gpuslice.slicing.device import Device


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    """A root whose libraries cannot be loaded, whichever libraries this machine has."""
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


def test_nvml_is_expected_if_nothing_else_is_detected(driver_root: Path, system: Path) -> None:
    for discovery in (Discovery.AUTO, Discovery.NVML):
        assert detect(discovery, driver_root, None, system) is Platform.NVML


def test_tegra_is_detected_by_its_release_file(driver_root: Path, system: Path) -> None:
    put(system / "etc" / "nv_tegra_release")
    assert detect(Discovery.AUTO, driver_root, None, system) is Platform.TEGRA
    assert detect(Discovery.NVML, driver_root, None, system) is Platform.NVML


@pytest.mark.parametrize(
    ("family", "platform"), [("Tegra\n", Platform.TEGRA), ("Qualcomm\n", Platform.NVML)]
)
def test_tegra_is_detected_by_the_family_of_its_chip(
    family: str, platform: Platform, driver_root: Path, system: Path
) -> None:
    put(system / "sys" / "devices" / "soc0" / "family", family)
    assert detect(Discovery.AUTO, driver_root, None, system) is platform


def test_tegra_can_be_configured(driver_root: Path, system: Path) -> None:
    assert detect(Discovery.TEGRA, driver_root, None, system) is Platform.TEGRA


def test_wsl_has_one_placeholder_for_all_gpus() -> None:
    inventory = placeholder_inventory(Platform.WSL, None)
    assert inventory.placeholders == (Device("all", "all", gpu="all", nodes=("/dev/dxg",)),)
    assert inventory.gpus == ()


def test_tegra_has_one_placeholder_without_device_nodes() -> None:
    inventory = placeholder_inventory(Platform.TEGRA, None)
    assert inventory.placeholders == (Device("tegra", "0", gpu="tegra", model="tegra"),)
    assert inventory.gpus == ()


def test_gpus_that_nvml_lists_need_no_placeholder() -> None:
    assert placeholder_inventory(Platform.NVML, None).placeholders == ()
