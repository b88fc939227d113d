"""What the kernel says about PCI functions, which needs no driver of NVIDIA."""

from __future__ import annotations

from pathlib import Path

_DEVICES = Path("bus/pci/devices")
_NVIDIA = "0x10de"
# Display controllers: VGA and 3D.
_GPU_CLASSES = ("0x0300", "0x0302")


def numa_node(sysfs: Path, bus_id: str) -> int | None:
    """None where the machine has no NUMA nodes or does not say."""
    text = _read(sysfs / _DEVICES / bus_id / "numa_node")
    try:
        node = int(text)
    except ValueError:
        return None
    return node if node >= 0 else None


def gpu_functions(sysfs: Path) -> dict[str, str]:
    """GPUs of NVIDIA by their address, with the kernel driver each is bound to (empty: none)."""
    try:
        functions = sorted((sysfs / _DEVICES).iterdir())
    except OSError:
        return {}
    return {path.name: _driver(path) for path in functions if _is_gpu(path)}


def _is_gpu(function: Path) -> bool:
    return _read(function / "vendor") == _NVIDIA and _read(function / "class").startswith(
        _GPU_CLASSES
    )


def _driver(function: Path) -> str:
    try:
        return (function / "driver").readlink().name
    except OSError:
        return ""


def _read(path: Path) -> str:
    """A function may vanish while it is being looked at."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
