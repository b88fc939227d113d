"""What a container receives: one type, rendered as Allocate's answer or as a CDI specification."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    host_path: str
    container_path: str
    read_only: bool = False
    # For CDI only: the kubelet's API has no mount options.
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    host_path: str
    container_path: str
    # What CDI specifications state in addition; 0: unknown.
    major: int = 0
    minor: int = 0
    mode: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Hook:
    """A subcommand of NVIDIA's hook program. For CDI only."""

    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    # Qualified names of devices in CDI specifications.
    cdi_devices: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __bool__(self) -> bool:
        return bool(
            self.env
            or self.mounts
            or self.devices
            or self.annotations
            or self.cdi_devices
            or self.hooks
        )


NOTHING = ContainerEdits()


def merged(edits: Iterable[ContainerEdits]) -> ContainerEdits:
    """Raises ValueError if two of them set the same name, which is a programming error."""
    edits = [one for one in edits if one]
    if len(edits) == 1:  # the usual case, and a pod waits for it
        return edits[0]
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for one in edits:
        clash = (env.keys() & one.env.keys()) | (annotations.keys() & one.annotations.keys())
        if clash:
            raise ValueError(f"two parts of the edits set the same names: {sorted(clash)}")
        env |= one.env
        annotations |= one.annotations
    return ContainerEdits(
        env,
        tuple(mount for one in edits for mount in one.mounts),
        tuple(device for one in edits for device in one.devices),
        annotations,
        tuple(name for one in edits for name in one.cdi_devices),
        tuple(hook for one in edits for hook in one.hooks),
    )
