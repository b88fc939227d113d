"""PCI functions in sysfs, which are listed without an NVIDIA driver, too."""

from __future__ import annotations

from pathlib import Path

_NVIDIA = 0x10DE
# VGA and 3D controllers: the upper two bytes of the PCI class.
_GPU_CLASSES = (0x0300, 0x0302)
# Of the kernel.
_MOST_NUMA_NODES = 1024


def numa_node(sysfs: Path, bus_id: str) -> int | None:
    """None if the machine has no NUMA nodes, or does not report one that can exist."""
    node = _number(_devices(sysfs) / bus_id / "numa_node")
    return node if node is not None and 0 <= node < _MOST_NUMA_NODES else None


def pci_class(sysfs: Path, bus_id: str) -> int | None:
    return _number(_devices(sysfs) / bus_id / "class")


def gpu_functions(sysfs: Path) -> dict[str, str]:
    """PCI address of each NVIDIA GPU -> the kernel driver that it is bound to (empty: none)."""
    try:
        functions = nvidia_functions(sysfs)
    except OSError:
        return {}
    return {path.name: _driver(path) for path in functions if _is_gpu(path)}


def nvidia_functions(sysfs: Path) -> list[Path]:
    """All PCI functions of NVIDIA, GPUs or not. Raises OSError on a machine without PCI."""
    functions = sorted(_devices(sysfs).iterdir())
    return [path for path in functions if _number(path / "vendor") == _NVIDIA]


def _devices(sysfs: Path) -> Path:
    return sysfs / "bus" / "pci" / "devices"


def _is_gpu(function: Path) -> bool:
    number = _number(function / "class")
    return number is not None and number >> 8 in _GPU_CLASSES


def _driver(function: Path) -> str:
    try:
        return (function / "driver").readlink().name
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """None if it cannot be read: a function can be removed at any time."""
    try:
        return int(path.read_text(encoding="ascii").strip(), 0)
    except (OSError, ValueError):
        return None
