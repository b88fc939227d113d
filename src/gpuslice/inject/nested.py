"""What a container receives that is a node of a nested cluster.

The device plugin inside enumerates GPUs like any other, so the container sees every GPU of the
host. A variable lists the GPUs that it owns, and a file as well unless the container writes one
itself: an init system or an inner kubelet may drop the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpuslice.config.settings import NESTED_MOUNT, ContainerSettings, DeviceList
from gpuslice.inject.edits import ContainerEdits, Mount, merged
from gpuslice.inject.visible import (
    Host,
    both_lists,
    cdi_names,
    device_nodes,
    distinct,
    extra_modes,
    listed_by_mounts,
    listed_by_variable,
    runtime_id,
)
from gpuslice.slicing.allocated_list import VARIABLE
from gpuslice.slicing.device import Device

# Where the container has the file, for its scripts.
FILE_VARIABLE = f"{VARIABLE}_FILE"


@dataclass(frozen=True, slots=True)
class NestedLists:
    """The files that list the devices of nested nodes."""

    # None: containers get a variable only.
    container_path: str | None = NESTED_MOUNT
    # Writes a text to a file of the host and returns its path.
    write: Callable[[str], str] = field(default=str, compare=False)


def nested(
    devices: Sequence[Device],
    all_devices: Sequence[Device],
    settings: ContainerSettings,
    host: Host,
    lists: NestedLists,
) -> ContainerEdits:
    """The variable and CDI name all GPUs. Mounts and device nodes name the container's own only."""
    own, all_ = distinct(devices), distinct([*all_devices, *devices])
    own_ids = [runtime_id(device, settings) for device in own]
    none = ContainerEdits()
    chosen = settings.device_list
    by_variable = listed_by_variable([runtime_id(device, settings) for device in all_], host)
    return merged(
        [
            cdi_names(all_, settings, host),
            ContainerEdits(extra_modes(settings)),
            both_lists(
                by_variable if DeviceList.ENVVAR in chosen else none,
                listed_by_mounts(own_ids, host) if DeviceList.VOLUME_MOUNTS in chosen else none,
            ),
            device_nodes(own, settings, host),
            ContainerEdits({VARIABLE: ",".join(own_ids)}),
            _listed_by_file(own, lists),
        ]
    )


def _listed_by_file(own: Sequence[Device], lists: NestedLists) -> ContainerEdits:
    if lists.container_path is None:
        return ContainerEdits()
    host_path = lists.write(gpu_env(device.uuid for device in own))
    return ContainerEdits(
        {FILE_VARIABLE: lists.container_path},
        (Mount(host_path, lists.container_path, read_only=True),),
    )


def gpu_env(uuids: Iterable[str]) -> str:
    """UUIDs for every id strategy: inside, an index may count other GPUs than outside."""
    return f"{VARIABLE}={','.join(uuids)}\n"
