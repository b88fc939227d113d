"""What a container receives that is a node of a nested cluster.

The device plugin inside enumerates GPUs like any other, so the container sees every GPU of the
host. A variable and a file list the GPUs that it owns. The file is there because an init system or
an inner kubelet may drop the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuslice.config.settings import NESTED_ENV, ContainerSettings, DeviceList
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
from gpuslice.slicing.allocated_devices import VARIABLE
from gpuslice.slicing.device import Device


def nested(
    devices: Sequence[Device],
    all_devices: Sequence[Device],
    settings: ContainerSettings,
    host: Host,
    write_file: Callable[[str], str],
) -> ContainerEdits:
    """`write_file` writes a text to a file of the host and returns its path.

    The variable and CDI name all GPUs. Mounts and device nodes name the container's own GPUs only.
    """
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
            ContainerEdits(
                env={VARIABLE: ",".join(own_ids)},
                mounts=(
                    Mount(
                        write_file(gpu_env(device.uuid for device in own)),
                        NESTED_ENV,
                        read_only=True,
                    ),
                ),
            ),
        ]
    )


def gpu_env(uuids: Iterable[str]) -> str:
    """UUIDs for every id strategy: inside, an index may count other GPUs than outside."""
    return f"{VARIABLE}={','.join(uuids)}\n"
