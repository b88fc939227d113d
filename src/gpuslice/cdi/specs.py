"""The specifications of a node's devices: driver files and device nodes -> edits. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuslice.cdi.document import Spec
from gpuslice.gpus.device_nodes import CharDevice, DrmNodes, Link
from gpuslice.gpus.driver_files import DriverFiles
from gpuslice.inject.edits import ContainerEdits, DeviceNode, Hook, Mount
from gpuslice.inject.visible import under

GPU, IMEX = "gpu", "imex-channel"

Mode = Literal["gdrcopy", "gds", "mofed"]
# In the order in which Allocate's answer names them.
MODES: tuple[Mode, ...] = ("gdrcopy", "gds", "mofed")

# Tells NVIDIA's own runtime to leave the container to CDI.
_RUNTIME_OFF = {"NVIDIA_VISIBLE_DEVICES": "void"}
# Connecting to a socket needs write access.
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


@dataclass(frozen=True, slots=True)
class HostRoots:
    """Where the driver's files and its device nodes are on the host."""

    driver: str = "/"
    dev: str = "/"

    def mount(self, path: str, container_path: str = "", options: tuple[str, ...] = ()) -> Mount:
        """A file of the driver, given from the driver's root."""
        host_path = under(self.driver, path)
        return Mount(host_path, container_path or path, read_only=not options, options=options)

    def node(self, device: CharDevice) -> DeviceNode:
        return DeviceNode(
            host_path=under(self.dev, device.path),
            container_path=device.path,
            major=device.major,
            minor=device.minor,
            mode=device.mode,
            gid=device.gid,
        )


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """The device nodes of a GPU or MIG device."""

    nodes: tuple[CharDevice, ...]
    drm: DrmNodes = field(default_factory=DrmNodes)


def gpu_spec(
    devices: Mapping[str, GpuNodes],
    control: Sequence[CharDevice],
    files: DriverFiles,
    roots: HostRoots,
) -> Spec:
    """Devices by name. Edits that all of them need are common to the specification."""
    return Spec(
        GPU,
        {
            name: ContainerEdits(
                devices=tuple(map(roots.node, (*device.nodes, *device.drm.nodes))),
                hooks=_links(device.drm.links),
            )
            for name, device in devices.items()
        },
        ContainerEdits(
            env=_common_env(files),
            mounts=_common_mounts(files, roots),
            devices=tuple(map(roots.node, control)),
            hooks=_common_hooks(files),
        ),
    )


def imex_spec(channels: Mapping[int, CharDevice], roots: HostRoots) -> Spec:
    return Spec(
        IMEX,
        {
            str(number): ContainerEdits(devices=(roots.node(node),))
            for number, node in channels.items()
        },
    )


def mode_spec(
    mode: Mode, nodes: Sequence[CharDevice], files: Sequence[str], roots: HostRoots
) -> Spec:
    """GPUDirect Storage, MOFED or GDRCopy. Without their device nodes there is no specification."""
    if not nodes:
        return Spec(mode, {})
    edits = ContainerEdits(
        mounts=tuple(map(roots.mount, files)), devices=tuple(map(roots.node, nodes))
    )
    return Spec(mode, {"all": edits}, ContainerEdits(env=_RUNTIME_OFF))


def _common_env(files: DriverFiles) -> dict[str, str]:
    if files.library_directory is None:
        return _RUNTIME_OFF
    return _RUNTIME_OFF | {"NVIDIA_CTK_LIBCUDA_DIR": files.library_directory}


def _common_mounts(files: DriverFiles, roots: HostRoots) -> tuple[Mount, ...]:
    libraries = [library.path for library in (*files.libraries, *files.modules)]
    return (
        *map(roots.mount, (*libraries, *files.programs, *files.firmware)),
        *(roots.mount(config.path, config.container_path) for config in files.configs),
        *(roots.mount(path, options=_SOCKET_OPTIONS) for path in files.sockets),
    )


def _common_hooks(files: DriverFiles) -> tuple[Hook, ...]:
    """In the order in which they depend on each other."""
    links = [link for library in (*files.modules, *files.libraries) for link in library.links]
    folders = dict.fromkeys(
        posixpath.dirname(library.path) for library in files.libraries if _is_library(library.path)
    )
    return (
        *_links(links),
        Hook("enable-cuda-compat", (f"--host-driver-version={files.version}",)),
        Hook("update-ldcache", tuple(w for folder in folders for w in ("--folder", folder))),
        Hook("disable-device-node-modification"),
    )


def _is_library(path: str) -> bool:
    name = posixpath.basename(path)
    return name.startswith("lib") and ".so" in name


def _links(links: Iterable[Link]) -> tuple[Hook, ...]:
    words = [f"{link.target}::{link.path}" for link in dict.fromkeys(links)]
    if not words:
        return ()
    return (Hook("create-symlinks", tuple(w for word in words for w in ("--link", word))),)
