"""Device nodes of GPUs: paths, numbers and permissions."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpuslice.files.rooted_tree import Tree

# Every container with a GPU needs these.
CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)


@dataclass(frozen=True, slots=True)
class CharDevice:
    path: str
    major: int
    minor: int
    # Permission bits.
    mode: int = 0o666
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link that a container needs in addition to mounted files."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class DrmNodes:
    """The display part of a GPU: /dev/dri/cardN and /dev/dri/renderDN."""

    nodes: tuple[CharDevice, ...] = ()
    # Stable names, by PCI address.
    links: tuple[Link, ...] = ()


def char_devices(tree: Tree, patterns: Iterable[str]) -> tuple[CharDevice, ...]:
    """The character devices that exist. A pattern may be a path."""
    paths = dict.fromkeys(path for pattern in patterns for path in tree.matching(pattern))
    found = (_char_device(tree, path) for path in paths)
    return tuple(node for node in found if node is not None)


def drm_nodes(dev: Tree, sys: Tree, pci_bus_id: str) -> DrmNodes:
    """The nodes that /sys lists for the PCI address and that exist."""
    if not pci_bus_id:
        return DrmNodes()
    names = sys.matching(f"/sys/bus/pci/devices/{pci_bus_id}/drm/*")
    nodes = char_devices(dev, (f"/dev/dri/{PurePosixPath(name).name}" for name in names))
    paths = {node.path for node in nodes}
    links = []
    for kind in ("card", "render"):
        path = f"/dev/dri/by-path/pci-{pci_bus_id}-{kind}"
        target = dev.link_target(path)
        if target is not None and os.path.normpath(f"/dev/dri/by-path/{target}") in paths:
            links.append(Link(target, path))
    return DrmNodes(nodes, tuple(links))


def _char_device(tree: Tree, path: str) -> CharDevice | None:
    try:
        found = tree.at(path).lstat()
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return CharDevice(
        path,
        os.major(found.st_rdev),
        os.minor(found.st_rdev),
        stat.S_IMODE(found.st_mode),
        found.st_gid,
    )
