"""The kind of machine, and placeholders for GPUs on machines that do not identify them."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

from gpuslice.config.settings import Discovery
from gpuslice.gpus.inventory import Inventory, Platform
from gpuslice.gpus.library import NVML, find_library
from gpuslice.gpus.nvml import Nvml, NvmlError
from gpuslice.slicing.device import Device

_DXCORE = "libdxcore.so"
# Integrated GPUs of Tegra systems, by their NVML names.
_INTEGRATED = ("(nvgpu)", "NVIDIA Thor")


def detect(
    discovery: Discovery, driver_root: Path, nvml: Nvml | None, system: Path = Path("/")
) -> Platform:
    """`nvml` is the driver if it could be opened, `system` the root of the machine's own files.

    If nothing else is detected, NVML is expected, and its absence is the error to report.
    """
    if discovery is Discovery.TEGRA:
        return Platform.TEGRA
    if _loads(driver_root, _DXCORE):
        return Platform.WSL
    if discovery is Discovery.AUTO and _is_tegra(driver_root, nvml, system):
        return Platform.TEGRA
    return Platform.NVML


def placeholder_inventory(platform: Platform, nvml: Nvml | None) -> Inventory:
    """For a platform that does not identify its GPUs."""
    return Inventory(
        _driver_version(nvml), (), placeholders=_placeholders(platform, nvml), platform=platform
    )


def _placeholders(platform: Platform, nvml: Nvml | None) -> tuple[Device, ...]:
    match platform:
        case Platform.WSL:
            model = next(iter(_names(nvml)), "")
            return (Device("all", "all", gpu="all", nodes=("/dev/dxg",), model=model),)
        case Platform.TEGRA:
            return (Device("tegra", "0", gpu="tegra", model="tegra"),)
        case Platform.NVML:
            return ()


def _is_tegra(driver_root: Path, nvml: Nvml | None, system: Path) -> bool:
    if any(mark in name for name in _names(nvml) for mark in _INTEGRATED):
        return True
    return nvml is None and _has_tegra_files(system) and not _loads(driver_root, NVML)


def _has_tegra_files(system: Path) -> bool:
    if (system / "etc/nv_tegra_release").is_file():
        return True
    try:
        family = (system / "sys/devices/soc0/family").read_text()
    except OSError:
        return False
    return family.lower().startswith("tegra")


def _names(nvml: Nvml | None) -> list[str]:
    """The names of the GPUs that answer."""
    if nvml is None:
        return []
    names: list[str] = []
    for index in range(_count(nvml)):
        with contextlib.suppress(NvmlError):
            names.append(nvml.gpu(index).name())
    return names


def _count(nvml: Nvml) -> int:
    try:
        return nvml.count()
    except NvmlError:
        return 0


def _driver_version(nvml: Nvml | None) -> str:
    try:
        return nvml.driver_version() if nvml is not None else ""
    except NvmlError:
        return ""


def _loads(driver_root: Path, name: str) -> bool:
    try:
        ctypes.CDLL(str(find_library(driver_root, name) or name))
    except OSError:
        return False
    return True
