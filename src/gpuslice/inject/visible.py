"""Which devices a container sees, for each device list strategy."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from gpuslice.codes import Code
from gpuslice.config.settings import ContainerSettings, DeviceId, DeviceList
from gpuslice.inject.edits import NOTHING, ContainerEdits, DeviceNode, Mount, merged
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
IMEX_NODES = "/dev/nvidia-caps-imex-channels/channel"

# NVIDIA's runtime reads the names of the files mounted here as the list of devices.
_LIST_BY_MOUNTS = "/var/run/nvidia-container-devices"
_ANNOTATION = "nvidia-device-plugin_"
# An arbitrary constant: equal requests get equal answers.
_ANNOTATION_SPACE = UUID("c5a1f1d6-4cf0-5f6b-9d1b-7c1f1f0c8e52")


@dataclass(frozen=True)
class Host:
    """What the node has that the edits depend on."""

    # Device nodes that every GPU needs, as containers name them.
    control_nodes: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    # UUID of a device -> its qualified name in a CDI specification.
    cdi_names: Mapping[str, str] = field(default_factory=dict)
    # Qualified names that every container gets in addition to its GPUs.
    cdi_extras: tuple[str, ...] = ()


def visible(devices: Sequence[Device], settings: ContainerSettings, host: Host) -> ContainerEdits:
    """Raises GrantRefused for a device that no CDI specification describes."""
    once = distinct(devices)
    return merged(
        [
            cdi_names(once, settings, host),
            ContainerEdits(extra_modes(settings)),
            _listed(once, settings, host),
            device_nodes(once, settings, host),
        ]
    )


def can_be_injected(device: Device, settings: ContainerSettings, host: Host) -> bool:
    """CDI injects only what a specification describes."""
    return not settings.uses_cdi or device.uuid in host.cdi_names


def distinct(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Each device once, in the order of the request."""
    return tuple({device.uuid: device for device in devices}.values())


def runtime_id(device: Device, settings: ContainerSettings) -> str:
    return device.uuid if settings.device_id is DeviceId.UUID else device.index


def cdi_names(devices: Sequence[Device], settings: ContainerSettings, host: Host) -> ContainerEdits:
    if not settings.uses_cdi:
        return NOTHING
    names = (*(_cdi_name(device, host) for device in devices), *host.cdi_extras)
    joined = ",".join(names)
    key = f"{settings.cdi_annotation_prefix}{_ANNOTATION}{uuid5(_ANNOTATION_SPACE, joined)}"
    return ContainerEdits(
        annotations={key: joined} if DeviceList.CDI_ANNOTATIONS in settings.device_list else {},
        cdi_devices=names if DeviceList.CDI_CRI in settings.device_list else (),
    )


def extra_modes(settings: ContainerSettings) -> dict[str, str]:
    modes = {
        "NVIDIA_GDRCOPY": settings.gdrcopy,
        "NVIDIA_GDS": settings.gds,
        "NVIDIA_MOFED": settings.mofed,
    }
    return {name: "enabled" for name, enabled in modes.items() if enabled}


def listed_by_variable(ids: Iterable[str], host: Host) -> ContainerEdits:
    env = {VISIBLE_DEVICES: ",".join(ids)}
    if host.imex_channels:
        env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, host.imex_channels))
    return ContainerEdits(env)


def listed_by_mounts(ids: Iterable[str], host: Host) -> ContainerEdits:
    names = [*ids, *(f"imex/{channel}" for channel in host.imex_channels)]
    return ContainerEdits(
        env={VISIBLE_DEVICES: _LIST_BY_MOUNTS},
        mounts=tuple(Mount("/dev/null", f"{_LIST_BY_MOUNTS}/{name}") for name in names),
    )


def device_nodes(
    devices: Sequence[Device], settings: ContainerSettings, host: Host
) -> ContainerEdits:
    """None if CDI is the only strategy: it injects the nodes itself."""
    if not settings.pass_device_specs or not _without_cdi(settings):
        return NOTHING
    paths = [*host.control_nodes, *(node for device in devices for node in device.nodes)]
    paths += [f"{IMEX_NODES}{channel}" for channel in host.imex_channels]
    return ContainerEdits(
        devices=tuple(
            DeviceNode(host_path=under(settings.dev_root, path), container_path=path)
            for path in dict.fromkeys(paths)
        )
    )


def under(root: str, path: str) -> str:
    return posixpath.join(root, path.lstrip("/"))


def both_lists(by_variable: ContainerEdits, by_mounts: ContainerEdits) -> ContainerEdits:
    """The runtime reads one of the two and prefers mounts, which pods cannot forge."""
    if not by_variable or not by_mounts:
        return by_variable or by_mounts
    return ContainerEdits(by_variable.env | by_mounts.env, by_mounts.mounts)


def _listed(devices: Sequence[Device], settings: ContainerSettings, host: Host) -> ContainerEdits:
    ids = [runtime_id(device, settings) for device in devices]
    chosen = settings.device_list
    return both_lists(
        listed_by_variable(ids, host) if DeviceList.ENVVAR in chosen else NOTHING,
        listed_by_mounts(ids, host) if DeviceList.VOLUME_MOUNTS in chosen else NOTHING,
    )


def _without_cdi(settings: ContainerSettings) -> bool:
    return bool(settings.device_list & {DeviceList.ENVVAR, DeviceList.VOLUME_MOUNTS})


def _cdi_name(device: Device, host: Host) -> str:
    name = host.cdi_names.get(device.uuid)
    if name is None:
        raise GrantRefused(
            Code.CDI_DEVICE_MISSING,
            f"device {device.uuid} has no CDI name on this node: no CDI specification describes "
            "it. Check its device nodes, or use the device list strategy envvar or volume-mounts",
        )
    return name
