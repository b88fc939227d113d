"""What a container receives that is itself a node of a nested cluster.

The device plugin inside enumerates GPUs as any other does, so the container sees every GPU of the
host. Which of them are its own it learns from a variable and from a file; the second survives
where an init system or an inner kubelet drops the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuslice.config.settings import NESTED_ENV, ContainerSettings, DeviceList
from gpuslice.inject.visible import (
    Host,
    both_lists,
    cdi_names,
    device_nodes,
    distinct,
    extra_modes,
    listed_by_mounts,
    listed_by_variable,
    shown_id,
)
from gpuslice.kubelet.answer import ContainerAnswer, Mount, merged
from gpuslice.slicing.allocated_devices import VARIABLE
from gpuslice.slicing.device import Device


def nested(
    devices: Sequence[Device],
    everything: Sequence[Device],
    settings: ContainerSettings,
    host: Host,
    keep_file: Callable[[str], str],
) -> ContainerAnswer:
    """`keep_file` keeps a text in a file of the host and returns its path.

    The variable and CDI name all GPUs. Mounts and device nodes name the allotted ones only: the
    kubelet grants them by itself, and a container gets no more than it was given.
    """
    own, all_ = distinct(devices), distinct([*everything, *devices])
    own_ids = [shown_id(device, settings) for device in own]
    none = ContainerAnswer()
    chosen = settings.device_list
    by_variable = listed_by_variable([shown_id(device, settings) for device in all_], host)
    return merged(
        [
            cdi_names(all_, settings, host),
            ContainerAnswer(extra_modes(settings)),
            both_lists(
                by_variable if DeviceList.ENVVAR in chosen else none,
                listed_by_mounts(own_ids, host) if DeviceList.VOLUME_MOUNTS in chosen else none,
            ),
            device_nodes(own, settings, host),
            ContainerAnswer(
                env={VARIABLE: ",".join(own_ids)},
                mounts=(
                    Mount(
                        keep_file(gpu_env(device.uuid for device in own)),
                        NESTED_ENV,
                        read_only=True,
                    ),
                ),
            ),
        ]
    )


def gpu_env(uuids: Iterable[str]) -> str:
    """UUIDs whatever the id strategy: an index inside may count other GPUs than one outside."""
    return f"{VARIABLE}={','.join(uuids)}\n"
