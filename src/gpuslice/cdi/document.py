"""Edits -> a CDI specification as the container runtime reads it. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuslice.inject.edits import NOTHING, ContainerEdits, DeviceNode, Hook, Mount

VENDOR = "k8s.device-plugin.nvidia.com"

Json = Mapping[str, object]

_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_WRITABLE = ("nosuid", "nodev", "rbind", "rprivate")


@dataclass(frozen=True, slots=True)
class Spec:
    """One specification: the edits of each device by name, and those that all of them share."""

    cls: str
    devices: Mapping[str, ContainerEdits]
    common: ContainerEdits = NOTHING
    vendor: str = VENDOR

    @property
    def kind(self) -> str:
        return f"{self.vendor}/{self.cls}"

    def qualified(self, name: str) -> str:
        return f"{self.kind}={name}"


@dataclass(frozen=True, slots=True)
class HookProgram:
    """NVIDIA's program that completes a container's root file system after all mounts."""

    path: str = "/usr/bin/nvidia-ctk"
    disabled: frozenset[str] = frozenset()

    def documents(self, hooks: Iterable[Hook]) -> list[Json]:
        return [self._document(hook) for hook in hooks if self._enabled(hook)]

    def _enabled(self, hook: Hook) -> bool:
        return not self.disabled & {"all", hook.name}

    def _document(self, hook: Hook) -> Json:
        program = posixpath.basename(self.path)
        # The older of NVIDIA's two programs has hooks as a subcommand.
        head = (program, "hook") if program == "nvidia-ctk" else (program,)
        return {
            "hookName": "createContainer",
            "path": self.path,
            "args": [*head, hook.name, *hook.arguments],
            "env": ["NVIDIA_CTK_DEBUG=false"],
        }


@dataclass(frozen=True, slots=True)
class Style:
    """Options of the document."""

    hooks: HookProgram = HookProgram()
    # Add containers of other users to the groups of device nodes that not everyone may open.
    additional_gids: bool = True


def device_name(text: str) -> str:
    """Drivers before R470 have slashes in the UUIDs of MIG devices, which CDI does not allow."""
    return text.replace("/", ":")


def document(spec: Spec, style: Style) -> Json:
    """In the oldest version of the format that can express it."""
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


def _edits(edits: ContainerEdits, style: Style) -> Json:
    nodes = {node.container_path: node for node in edits.devices}
    mounts = {mount.container_path: mount for mount in edits.mounts}
    gids = {node.gid for node in nodes.values() if style.additional_gids and _needs_group(node)}
    parts: dict[str, object] = {
        "env": sorted(f"{name}={value}" for name, value in edits.env.items()),
        "deviceNodes": [_node(nodes[path]) for path in sorted(nodes, key=_depth)],
        "hooks": style.hooks.documents(edits.hooks),
        "mounts": [_mount(mounts[path]) for path in sorted(mounts, key=_depth)],
        "additionalGids": sorted(gids),
    }
    return {name: part for name, part in parts.items() if part}


def _depth(path: str) -> tuple[int, str]:
    """A parent directory is mounted before its children, or it would hide them."""
    return path.count("/"), path


def _needs_group(node: DeviceNode) -> bool:
    return node.gid != 0 and node.mode & 0o006 != 0o006


def _node(node: DeviceNode) -> Json:
    optional = {
        "hostPath": node.host_path if node.host_path != node.container_path else "",
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.mode,
        "gid": node.gid,
    }
    return {
        "path": node.container_path,
        **{name: value for name, value in optional.items() if value},
        "permissions": "rwm",
    }


def _mount(mount: Mount) -> Json:
    default = _READ_ONLY if mount.read_only else _WRITABLE
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": list(mount.options or default),
    }
