"""Writes a driver root: libraries, programs, and the files of the driver in /dev, /proc and /sys.

The container toolkit accepts such a directory as `--driver-root`. `gpuslice_sim.namespace` mounts
its kernel files at their usual paths, for programs with fixed paths.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NVIDIA_MAJOR = 195
_UVM_MAJOR = 510
_CAPS_MAJOR = 509
# Every possible MIG instance has a fixed minor number.
_FIRST_CAP, _GIS_PER_GPU, _CIS_PER_GI = 3, 15, 8


def install_library(native: Path, target: Path, library: str, version: str) -> None:
    """Installs a library under its versioned name, and the link that the loader needs."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(native / f"{library}.so", target / f"{library}.so.{version}")
    (target / f"{library}.so.1").symlink_to(f"{library}.so.{version}")


def install(native: Path, root: Path, version: str, programs: Path) -> None:
    """Installs the part of the root that never changes."""
    libraries = root / "usr" / "lib" / _triplet()
    for library in ("libnvidia-ml", "libcuda"):
        install_library(native, libraries, library, version)
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")
    (root / "usr" / "bin").mkdir(parents=True)
    for program in sorted(programs.iterdir()):
        shutil.copy(program, root / "usr" / "bin" / program.name)


def write_kernel_view(root: Path, values: Mapping[str, str]) -> None:
    """Writes /proc, /sys and /dev again, for the current GPUs and MIG layouts."""
    for tree in ("proc/driver/nvidia", "proc/driver/nvidia-caps"):
        shutil.rmtree(root / tree, ignore_errors=True)
    _write_driver(root / "proc" / "driver" / "nvidia", values)
    _write_pci(root / "sys" / "bus" / "pci" / "devices", values)
    capable = False
    for gpu in _present(values):
        _write_information(root / "proc" / "driver" / "nvidia" / "gpus", gpu)
        capable |= gpu["mig.capable"] == "1"
    if capable:
        _write_capabilities(root / "proc" / "driver", values)
    _write_devices(root / "dev", values)


def pci_address(bus_id: str) -> str:
    """The form of the kernel: 0000:3b:00.0 for 00000000:3B:00.0."""
    return bus_id[4:].lower()


def device_nodes(values: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Device nodes below /dev: major and minor by name."""
    nodes = {
        "nvidiactl": (_NVIDIA_MAJOR, 255),
        "nvidia-modeset": (_NVIDIA_MAJOR, 254),
        "nvidia-uvm": (_UVM_MAJOR, 0),
        "nvidia-uvm-tools": (_UVM_MAJOR, 1),
    }
    capable = False
    for gpu in _present(values):
        nodes[f"nvidia{gpu['minor']}"] = (_NVIDIA_MAJOR, int(gpu["minor"]))
        capable |= gpu["mig.capable"] == "1"
        for gi, ci in _instances(gpu):
            for minor in (_gi_minor(int(gpu["minor"]), gi), _ci_minor(int(gpu["minor"]), gi, ci)):
                nodes[f"nvidia-caps/nvidia-cap{minor}"] = (_CAPS_MAJOR, minor)
    if capable:
        for minor in (1, 2):
            nodes[f"nvidia-caps/nvidia-cap{minor}"] = (_CAPS_MAJOR, minor)
    return nodes


def make_device_nodes(dev: Path, nodes: Mapping[str, tuple[int, int]]) -> None:
    """Raises PermissionError if this process must not create device nodes."""
    for name, (major, minor) in nodes.items():
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).unlink(missing_ok=True)
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (dev / name).chmod(0o444 if "caps" in name else 0o666)


def _triplet() -> str:
    return f"{platform.machine()}-linux-gnu"


def _present(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    return (gpu for gpu in _gpus(values) if gpu["present"] != "0")


def _gpus(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    for index in range(int(values["gpu.count"])):
        prefix = f"gpu.{index}."
        yield {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _instances(gpu: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    if gpu.get("mig.mode") == "1":
        for number in range(int(gpu["mig.count"])):
            yield int(gpu[f"mig.{number}.gi"]), int(gpu[f"mig.{number}.ci"])


def _gi_minor(gpu: int, gi: int) -> int:
    return _FIRST_CAP + (gpu * _GIS_PER_GPU + gi) * (1 + _CIS_PER_GI)


def _ci_minor(gpu: int, gi: int, ci: int) -> int:
    return _gi_minor(gpu, gi) + 1 + ci


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_driver(nvidia: Path, values: Mapping[str, str]) -> None:
    version = values["driver.version"]
    _write(
        nvidia / "version",
        f"NVRM version: NVIDIA UNIX {platform.machine()} Kernel Module  {version}  "
        "Release Build  (simulated)\nGCC version:  gcc (simulated)\n",
    )
    _write(
        nvidia / "params",
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
    )
    (nvidia / "gpus").mkdir(parents=True)


def _write_information(gpus: Path, gpu: Mapping[str, str]) -> None:
    address = pci_address(gpu["pci"])
    rows = {
        "Model:": gpu["name"],
        "IRQ:": "100",
        "GPU UUID:": gpu["uuid"],
        "Video BIOS:": gpu["vbios"],
        "Bus Type:": "PCIe",
        "DMA Size:": "47 bits",
        "DMA Mask:": "0x7fffffffffff",
        "Bus Location:": address,
        "Device Minor:": gpu["minor"],
        "GPU Excluded:": "No",
    }
    text = "".join(f"{name} \t {value}\n" for name, value in rows.items())
    _write(gpus / address / "information", text)


def _write_pci(devices: Path, values: Mapping[str, str]) -> None:
    """Updates the directory in place: namespaces mount it, and other processes read it."""
    devices.mkdir(parents=True, exist_ok=True)
    drivers = {
        pci_address(gpu["pci"]): (gpu, _kernel_driver(gpu))
        for gpu in _gpus(values)
        if gpu["present"] != "0" or gpu.get("pci.driver")
    }
    for old in devices.iterdir():
        if old.name not in drivers:
            shutil.rmtree(old)
    for address, (gpu, driver) in drivers.items():
        _write_function(devices / address, gpu)
        _bind(devices / address / "driver", driver)


def _kernel_driver(gpu: Mapping[str, str]) -> str:
    return gpu.get("pci.driver", "").strip("-") if gpu["present"] == "0" else "nvidia"


def _bind(link: Path, driver: str) -> None:
    target = f"../../drivers/{driver}" if driver else None
    if target == (str(link.readlink()) if link.is_symlink() else None):
        return
    link.unlink(missing_ok=True)
    if target:
        link.symlink_to(target)


def _write_function(sysfs: Path, gpu: Mapping[str, str]) -> None:
    device, vendor = divmod(int(gpu["pci.device_id"], 16), 1 << 16)
    subsystem, subvendor = divmod(int(gpu["pci.subsystem_id"], 16), 1 << 16)
    for name, content in {
        "vendor": f"{vendor:#06x}",
        "device": f"{device:#06x}",
        "subsystem_vendor": f"{subvendor:#06x}",
        "subsystem_device": f"{subsystem:#06x}",
        "class": "0x030200",
        "numa_node": gpu["numa"],
        "resource": "0x0 0x0 0x0",
    }.items():
        _update(sysfs / name, f"{content}\n".encode())
    # The header of a type 0 configuration space without capabilities.
    head = struct.pack("<HHHHBBBB", vendor, device, 0x0007, 0, 0xA1, 0, 0x02, 0x03)
    _update(sysfs / "config", head.ljust(256, b"\0"))


def _update(path: Path, content: bytes) -> None:
    """Does not write an unchanged file, because other processes may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def _write_capabilities(driver: Path, values: Mapping[str, str]) -> None:
    """Minor numbers of all possible instances, and access files of those that exist."""
    lines = ["config 1", "monitor 2"]
    capabilities = driver / "nvidia" / "capabilities"
    for name, minor in (("config", 1), ("monitor", 2)):
        _write_access(capabilities / "mig" / name, minor)
    for gpu in sorted(_present(values), key=lambda gpu: int(gpu["minor"])):
        number = int(gpu["minor"])
        for gi in range(_GIS_PER_GPU):
            lines.append(f"gpu{number}/gi{gi}/access {_gi_minor(number, gi)}")
            lines.extend(
                f"gpu{number}/gi{gi}/ci{ci}/access {_ci_minor(number, gi, ci)}"
                for ci in range(_CIS_PER_GI)
            )
        for gi, ci in _instances(gpu):
            instance = capabilities / f"gpu{number}" / "mig" / f"gi{gi}"
            _write_access(instance / "access", _gi_minor(number, gi))
            _write_access(instance / f"ci{ci}" / "access", _ci_minor(number, gi, ci))
    _write(driver / "nvidia-caps" / "mig-minors", "\n".join(lines) + "\n")


def _write_access(path: Path, minor: int) -> None:
    _write(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")


def _write_devices(dev: Path, values: Mapping[str, str]) -> None:
    shutil.rmtree(dev, ignore_errors=True)
    dev.mkdir(parents=True)
    try:
        make_device_nodes(dev, device_nodes(values))
    except PermissionError:
        _write(dev / "README", "Device nodes are missing: only root can create them.\n")
