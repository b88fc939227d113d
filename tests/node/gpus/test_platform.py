"""Which kind of machine it is, and the driver's library below a driver root."""

from __future__ import annotations

import pytest

from gpuslice.gpus.inventory import Inventory
from gpuslice.gpus.platform import Platform
from gpuslice_sim.node import SimNode

from .conftest import Look, MakeNode

DETECT = """
nvml = Nvml.open()
platform = detect(Discovery({discovery!r}), node.root, nvml, node.root)
answer = platform, stand_in_inventory(platform, nvml)
"""


def detected(look: Look, node: SimNode, discovery: str = "auto") -> tuple[Platform, Inventory]:
    found: tuple[Platform, Inventory] = look(node, DETECT.format(discovery=discovery))
    return found


@pytest.mark.parametrize("discovery", ["auto", "nvml"])
def test_a_machine_with_a_driver_is_one_with_nvml(
    discovery: str, make_node: MakeNode, look: Look
) -> None:
    platform, inventory = detected(look, make_node("t4x2"), discovery)
    assert platform is Platform.NVML
    assert inventory.stand_ins == ()


@pytest.mark.parametrize("discovery", ["auto", "nvml"])
def test_wsl_is_known_by_its_library(discovery: str, make_node: MakeNode, look: Look) -> None:
    node = make_node("t4x2")
    node.add_library("libdxcore.so")
    platform, inventory = detected(look, node, discovery)
    assert platform is Platform.WSL
    [device] = inventory.stand_ins
    assert (device.uuid, device.index, device.nodes) == ("all", "all", ("/dev/dxg",))
    assert device.model == "Tesla T4"
    assert inventory.driver_version == "570.124.06"


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA Thor"])
def test_tegra_is_known_by_the_name_of_its_gpu(name: str, make_node: MakeNode, look: Look) -> None:
    node = make_node("t4x2")
    node.set({"gpu.1.name": name})
    platform, inventory = detected(look, node)
    assert platform is Platform.TEGRA
    [device] = inventory.stand_ins
    assert (device.uuid, device.index, device.nodes) == ("tegra", "0", ())
    assert detected(look, node, "nvml")[0] is Platform.NVML


def test_a_tegra_board_whose_driver_shows_other_gpus_is_one_with_nvml(
    make_node: MakeNode, look: Look
) -> None:
    node = make_node("t4x2")
    (node.root / "etc").mkdir()
    (node.root / "etc" / "nv_tegra_release").touch()
    assert detected(look, node)[0] is Platform.NVML


def test_a_lost_gpu_does_not_hide_what_machine_it_is(make_node: MakeNode, look: Look) -> None:
    node = make_node("t4x2")
    node.set({"gpu.1.name": "Orin (nvgpu)"})
    node.faults.lost(0)
    assert detected(look, node)[0] is Platform.TEGRA


def test_the_library_of_a_driver_root_is_used(make_node: MakeNode, look: Look) -> None:
    code = """
library = find_nvml(node.root)
answer = library.name, len(read_inventory(Nvml.open(library), sysfs, proc).gpus)
"""
    # Nothing but the driver root leads to the library.
    assert look(make_node("v100x4"), code, env={}) == ("libnvidia-ml.so.570.124.06", 4)


def test_a_library_that_cannot_be_loaded_is_named(make_node: MakeNode, look: Look) -> None:
    code = """
broken = node.directory / "libnvidia-ml.so.1"
broken.write_text("no library")
try:
    answer = Nvml.open(broken)
except DriverUnavailable as error:
    answer = str(error), error.outdated
"""
    node = make_node("t4x2")
    text, outdated = look(node, code)
    assert f"cannot load {node.directory}/libnvidia-ml.so.1" in text
    assert not outdated


def test_a_driver_that_was_replaced_under_the_process_is_told(
    make_node: MakeNode, look: Look
) -> None:
    code = """
try:
    answer = Nvml.open()
except DriverUnavailable as error:
    answer = error.outdated
"""
    node = make_node("t4x2")
    node.faults.nvml_init("LIB_RM_VERSION_MISMATCH")
    assert look(node, code) is True
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    assert look(node, code) is False
