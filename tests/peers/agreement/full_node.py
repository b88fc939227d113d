"""A node on which everything exists that a driver may install."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpuslice_sim.driver_root import pci_address
from gpuslice_sim.node import SimGpu, SimNode

LIBRARIES = f"usr/lib/{os.uname().machine}-linux-gnu"
NODES = {
    "gdrdrv": (240, 0),
    "nvidia-fs0": (241, 0),
    "nvidia-fs1": (241, 1),
    "infiniband/uverbs0": (231, 192),
    "infiniband/rdma_cm": (10, 58),
    "nvidia-caps-imex-channels/channel0": (234, 0),
}


def furnish(node: SimNode) -> None:
    """Puts everything in place that a driver may bring on a machine with a display."""
    version = node.state.values()["driver.version"]
    library = (node.root / LIBRARIES / f"libnvidia-ml.so.{version}").read_bytes()
    for name in (
        f"libGLX_nvidia.so.{version}",
        f"libnvidia-opticalflow.so.{version}",
        f"libnvidia-allocator.so.{version}",
        f"libnvidia-vulkan-producer.so.{version}",
        f"vdpau/libvdpau_nvidia.so.{version}",
        "libnvidia-egl-gbm.so.1.1.2",
        "libEGL.so.1.1.0",
    ):
        put(node, f"{LIBRARIES}/{name}", library)
    (node.root / LIBRARIES / "libEGL.so").symlink_to("libEGL.so.1.1.0")
    for name in (
        "usr/lib/xorg/modules/drivers/nvidia_drv.so",
        f"usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{version}",
        f"lib/firmware/nvidia/{version}/gsp_ga10x.bin",
        f"lib/firmware/nvidia/{version}/gsp_tu10x.bin",
        "usr/bin/nvidia-debugdump",
        "usr/bin/nvidia-persistenced",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
        "etc/vulkan/icd.d/nvidia_icd.json",
        "run/nvidia-persistenced/socket",
        "var/run/nvidia-fabricmanager/socket",
        "run/udev/control",
        "etc/cufile.json",
        # A directory, which neither of us takes for the socket of a daemon.
        "tmp/nvidia-mps/control",
    ):
        put(node, name)
    for name, (major, minor) in NODES.items():
        make_device(node.root / "dev" / name, major, minor, 0o666)
    for gpu in node.gpus():
        furnish_display(node, gpu)


def furnish_display(node: SimNode, gpu: SimGpu) -> None:
    address = pci_address(gpu.pci)
    by_path = node.root / "dev" / "dri" / "by-path"
    by_path.mkdir(parents=True, exist_ok=True)
    for kind, name, minor in (
        ("card", f"card{gpu.index + 1}", gpu.index + 1),
        ("render", f"renderD{128 + gpu.index}", 128 + gpu.index),
    ):
        (node.root / "sys" / "bus" / "pci" / "devices" / address / "drm" / name).mkdir(parents=True)
        path = node.root / "dev" / "dri" / name
        make_device(path, 226, minor, 0o660)
        os.chown(path, 0, 44)
        (by_path / f"pci-{address}-{kind}").symlink_to(f"../{name}")


def make_device(path: Path, major: int, minor: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    path.chmod(mode)


def put(node: SimNode, path: str, content: bytes = b"") -> None:
    target = node.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755)
