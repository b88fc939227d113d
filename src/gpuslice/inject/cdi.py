"""What a container gets with each device, in the words of the Container Device Interface."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuslice.gpus.device_nodes import CharDevice, DrmNodes, Link
from gpuslice.gpus.driver_files import DriverFiles, Library
from gpuslice.inject.visible import under

VENDOR = "k8s.device-plugin.nvidia.com"
GPU, IMEX = "gpu", "imex-channel"

Mode = Literal["gdrcopy", "gds", "mofed"]
# In the order in which answers name them.
MODES: tuple[Mode, ...] = ("gdrcopy", "gds", "mofed")

Json = Mapping[str, object]

# Tells NVIDIA's own runtime that CDI has done its work.
_RUNTIME_KEEPS_OUT = "NVIDIA_VISIBLE_DEVICES=void"
_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
# Connecting to a socket is writing to it.
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


@dataclass(frozen=True, slots=True)
class HostRoots:
    """Where the driver's files and its device nodes lie on the host."""

    driver: str = "/"
    dev: str = "/"


@dataclass(frozen=True, slots=True)
class Hook:
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HookProgram:
    """NVIDIA's program that finishes a container's root once everything is mounted."""

    path: str = "/usr/bin/nvidia-ctk"
    disabled: frozenset[str] = frozenset()

    def documents(self, hooks: Iterable[Hook]) -> list[Json]:
        return [self._document(hook) for hook in hooks if self._runs(hook)]

    def _runs(self, hook: Hook) -> bool:
        return not self.disabled & {"all", hook.name}

    def _document(self, hook: Hook) -> Json:
        program = posixpath.basename(self.path)
        # The older of the two programs does much else and has hooks as a subcommand.
        head = (program, "hook") if program == "nvidia-ctk" else (program,)
        return {
            "hookName": "createContainer",
            "path": self.path,
            "args": [*head, hook.name, *hook.arguments],
            "env": ["NVIDIA_CTK_DEBUG=false"],
        }


@dataclass(frozen=True, slots=True)
class FileMount:
    """`path` is seen from the driver root."""

    path: str
    container_path: str
    options: tuple[str, ...] = _READ_ONLY


@dataclass(frozen=True, slots=True)
class Edits:
    env: tuple[str, ...] = ()
    nodes: tuple[CharDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[FileMount, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A specification before the host's paths are put in. Devices are sorted by name."""

    cls: str
    devices: Mapping[str, Edits]
    common: Edits = Edits()

    @property
    def kind(self) -> str:
        return f"{VENDOR}/{self.cls}"

    def qualified(self, name: str) -> str:
        return f"{self.kind}={name}"


@dataclass(frozen=True, slots=True)
class Style:
    """How a specification is written down."""

    roots: HostRoots = HostRoots()
    hooks: HookProgram = HookProgram()
    # Containers of other users join the groups of nodes that not everyone may open.
    additional_gids: bool = True


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """The device nodes of a GPU or MIG device."""

    nodes: tuple[CharDevice, ...]
    drm: DrmNodes = field(default_factory=DrmNodes)


def gpu_spec(
    devices: Mapping[str, GpuNodes], control: Sequence[CharDevice], files: DriverFiles
) -> Spec:
    """Devices by name. What all of them need stands in the specification once."""
    return Spec(
        GPU,
        {
            name: Edits(nodes=(*device.nodes, *device.drm.nodes), hooks=_links(device.drm.links))
            for name, device in devices.items()
        },
        Edits(
            env=_common_env(files),
            nodes=tuple(control),
            hooks=_common_hooks(files),
            mounts=_common_mounts(files),
        ),
    )


def imex_spec(channels: Mapping[int, CharDevice]) -> Spec:
    return Spec(IMEX, {str(number): Edits(nodes=(node,)) for number, node in channels.items()})


def mode_spec(mode: Mode, nodes: Sequence[CharDevice], files: Sequence[str] = ()) -> Spec:
    """GPUDirect Storage, MOFED or GDRCopy. Without their nodes their files are of no use."""
    if not nodes:
        return Spec(mode, {})
    mounts = tuple(FileMount(path, path) for path in files)
    edits = Edits(nodes=tuple(nodes), mounts=mounts)
    return Spec(mode, {"all": edits}, Edits(env=(_RUNTIME_KEEPS_OUT,)))


def file_name(cls: str) -> str:
    return f"{VENDOR}-{cls}.json"


def device_name(text: str) -> str:
    """Drivers before R470 have slashes in the UUIDs of MIG devices, which CDI does not allow."""
    return text.replace("/", ":")


def document(spec: Spec, style: Style) -> Json:
    """The specification as the runtime reads it, in the oldest version that can express it."""
    devices = [
        {"name": name, "containerEdits": _edits(edits, style)}
        for name, edits in sorted(spec.devices.items())
    ]
    common = _edits(spec.common, style)
    version = _version(spec, [common, *(_edits(edits, style) for edits in spec.devices.values())])
    head = {"cdiVersion": version, "kind": spec.kind, "devices": devices}
    return {**head, "containerEdits": common} if common else head


def _version(spec: Spec, edits: Sequence[Json]) -> str:
    if any("additionalGids" in one for one in edits):
        return "0.7.0"
    digits = any(name[:1].isdigit() for name in spec.devices)
    moved = any("hostPath" in node for one in edits for node in _objects(one, "deviceNodes"))
    return "0.5.0" if digits or moved else "0.3.0"


def _objects(edits: Json, key: str) -> Sequence[Json]:
    found = edits.get(key, [])
    assert isinstance(found, list)
    return found


def _edits(edits: Edits, style: Style) -> Json:
    nodes = {node.path: node for node in edits.nodes}
    mounts = {mount.container_path: mount for mount in edits.mounts}
    gids = {node.gid for node in nodes.values() if style.additional_gids and _needs_group(node)}
    parts: dict[str, object] = {
        "env": sorted(edits.env),
        "deviceNodes": [_node(nodes[path], style.roots) for path in sorted(nodes, key=_depth)],
        "hooks": style.hooks.documents(edits.hooks),
        "mounts": [_mount(mounts[path], style.roots) for path in sorted(mounts, key=_depth)],
        "additionalGids": sorted(gids),
    }
    return {name: part for name, part in parts.items() if part}


def _depth(path: str) -> tuple[int, str]:
    """What lies higher is mounted first, or it would hide what lies below it."""
    return path.count("/"), path


def _needs_group(node: CharDevice) -> bool:
    return node.gid != 0 and node.mode & 0o006 != 0o006


def _node(node: CharDevice, roots: HostRoots) -> Json:
    host_path = under(roots.dev, node.path)
    optional = {
        "hostPath": host_path if host_path != node.path else "",
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.mode,
        "gid": node.gid,
    }
    return {
        "path": node.path,
        **{name: value for name, value in optional.items() if value},
        "permissions": "rwm",
    }


def _mount(mount: FileMount, roots: HostRoots) -> Json:
    return {
        "hostPath": under(roots.driver, mount.path),
        "containerPath": mount.container_path,
        "options": list(mount.options),
    }


def _common_env(files: DriverFiles) -> tuple[str, ...]:
    env = [_RUNTIME_KEEPS_OUT]
    if files.library_directory is not None:
        env.append(f"NVIDIA_CTK_LIBCUDA_DIR={files.library_directory}")
    return tuple(env)


def _common_mounts(files: DriverFiles) -> tuple[FileMount, ...]:
    libraries: tuple[Library, ...] = (*files.libraries, *files.modules)
    plain = (*(library.path for library in libraries), *files.programs, *files.firmware)
    return (
        *(FileMount(path, path) for path in plain),
        *(FileMount(config.path, config.container_path) for config in files.configs),
        *(FileMount(path, path, _SOCKET) for path in files.sockets),
    )


def _common_hooks(files: DriverFiles) -> tuple[Hook, ...]:
    """In the order in which they build on each other."""
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
