"""The platform of a machine, and the driver's library below a driver root."""

from __future__ import annotations

import pytest

from gpuslice.gpus.inventory import Inventory, Platform
from gpuslice_sim.node import SimNode

from .conftest import Evaluate, MakeNode

DETECT = """
nvml = Nvml.open()
platform = detect(Discovery({discovery!r}), node.root, nvml, node.root)
result = platform, placeholder_inventory(platform, nvml)
"""


def detected(
    evaluate: Evaluate, node: SimNode, discovery: str = "auto"
) -> tuple[Platform, Inventory]:
    found: tuple[Platform, Inventory] = evaluate(node, DETECT.format(discovery=discovery))
    return found


@pytest.mark.parametrize("discovery", ["auto", "nvml"])
def test_a_machine_with_a_driver_uses_nvml(
    discovery: str, make_node: MakeNode, evaluate: Evaluate
) -> None:
    platform, inventory = detected(evaluate, make_node("t4x2"), discovery)
    assert platform is Platform.NVML
    assert inventory.placeholders == ()


@pytest.mark.parametrize("discovery", ["auto", "nvml"])
def test_wsl_is_detected_by_its_library(
    discovery: str, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("t4x2")
    node.add_library("libdxcore.so")
    platform, inventory = detected(evaluate, node, discovery)
    assert platform is Platform.WSL
    [device] = inventory.placeholders
    assert (device.uuid, device.index, device.nodes) == ("all", "all", ("/dev/dxg",))
    assert device.model == "Tesla T4"
    assert inventory.driver_version == "570.124.06"


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA Thor"])
def test_tegra_is_detected_by_the_name_of_its_gpu(
    name: str, make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("t4x2")
    node.set({"gpu.1.name": name})
    platform, inventory = detected(evaluate, node)
    assert platform is Platform.TEGRA
    [device] = inventory.placeholders
    assert (device.uuid, device.index, device.nodes) == ("tegra", "0", ())
    assert detected(evaluate, node, "nvml")[0] is Platform.NVML


def test_a_tegra_board_whose_driver_lists_other_gpus_uses_nvml(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("t4x2")
    (node.root / "etc").mkdir()
    (node.root / "etc" / "nv_tegra_release").touch()
    assert detected(evaluate, node)[0] is Platform.NVML


def test_a_lost_gpu_does_not_affect_the_platform(make_node: MakeNode, evaluate: Evaluate) -> None:
    node = make_node("t4x2")
    node.set({"gpu.1.name": "Orin (nvgpu)"})
    node.faults.lost(0)
    assert detected(evaluate, node)[0] is Platform.TEGRA


def test_the_library_of_a_driver_root_is_used(make_node: MakeNode, evaluate: Evaluate) -> None:
    code = """
library = find_nvml(node.root)
result = library.name, len(read_inventory(Nvml.open(library), sysfs, proc).gpus)
"""
    # The library is found through the driver root only.
    assert evaluate(make_node("v100x4"), code, env={}) == ("libnvidia-ml.so.570.124.06", 4)


def test_a_library_that_cannot_be_loaded_is_named(make_node: MakeNode, evaluate: Evaluate) -> None:
    code = """
broken = node.directory / "libnvidia-ml.so.1"
broken.write_text("no library")
try:
    result = Nvml.open(broken)
except DriverUnavailable as error:
    result = str(error), error.outdated
"""
    node = make_node("t4x2")
    text, outdated = evaluate(node, code)
    assert f"cannot load {node.directory}/libnvidia-ml.so.1" in text
    assert not outdated


def test_a_driver_that_was_replaced_while_the_process_runs_is_detected(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    code = """
try:
    result = Nvml.open()
except DriverUnavailable as error:
    result = error.outdated
"""
    node = make_node("t4x2")
    node.faults.nvml_init("LIB_RM_VERSION_MISMATCH")
    assert evaluate(node, code) is True
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    assert evaluate(node, code) is False
