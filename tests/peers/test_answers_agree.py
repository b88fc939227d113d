"""Containers receive from us what they receive from NVIDIA's device plugin.

Accepted differences, each undone below before the two are compared:

* the key of the CDI annotation ends in a random number there, in one that follows from its value
  here.
* a device node that two devices share is passed twice there, once here.
* two devices named by index come in any order there, in the order of the request here.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from gpuslice.config.settings import ContainerSettings, DeviceId, DeviceList
from gpuslice.inject.edits import ContainerEdits
from gpuslice.inject.visible import Host, visible
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.slicing.device import Device
from gpuslice_sim.node import SimNode

from . import device_nodes
from .conftest import MakeNode, StartPlugin

VENDOR = "k8s.device-plugin.nvidia.com"
RESOURCE = "nvidia.com/mig-1g.5gb"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
EVERY_LIST = [
    frozenset(chosen) for size in range(1, 5) for chosen in combinations(list(DeviceList), size)
]


@pytest.mark.parametrize("chosen", EVERY_LIST, ids=lambda c: "+".join(sorted(d.value for d in c)))
@pytest.mark.parametrize("ids", list(DeviceId))
@pytest.mark.parametrize("nodes", [False, True], ids=["", "nodes"])
def test_every_combination_of_strategies_agrees(
    make_node: MakeNode,
    start_plugin: StartPlugin,
    scratch: Path,
    chosen: frozenset[DeviceList],
    ids: DeviceId,
    nodes: bool,
) -> None:
    node = make_node("a100x2-mig-mixed")
    settings = ContainerSettings(
        device_list=chosen,
        device_id=ids,
        pass_device_specs=nodes,
        gdrcopy=nodes,
        gds=True,
        driver_root=str(node.root),
        dev_root=str(node.root),
    )
    plugin = start_plugin(
        node,
        "--mig-strategy=mixed",
        f"--device-list-strategy={','.join(sorted(way.value for way in chosen))}",
        f"--device-id-strategy={ids.value}",
        f"--pass-device-specs={str(nodes).lower()}",
        f"--gdrcopy-enabled={str(nodes).lower()}",
        "--gds-enabled",
        f"--driver-root={node.root}",
        binds={"/run/cdi": scratch / "cdi"},
    )
    devices = small_instances(node)
    names = {d.uuid: d.uuid if ids is DeviceId.UUID else d.index for d in devices}
    # The node has no hardware for the extra modes, so CDI describes none.
    host = Host(CONTROL, cdi_names={uuid: f"{VENDOR}/gpu={name}" for uuid, name in names.items()})
    for asked in (devices[:1], devices[1:], devices):
        theirs = plugin.allocate(*(device.uuid for device in asked), resource=RESOURCE)
        assert plain(visible(asked, settings, host)) == plain_of(theirs)


def small_instances(node: SimNode) -> list[Device]:
    """Two MIG devices of one GPU, and so with a device node in common."""
    gpu = node.gpu(0)
    return [
        Device(mig.uuid, f"0:{n}", gpu.uuid, tuple(device_nodes.of_mig(node, gpu, mig)))
        for n, mig in enumerate(gpu.mig)
        if mig.profile.name == "1g.5gb"
    ]


def plain(answer: ContainerEdits) -> dict[str, object]:
    return {
        "env": {name: sorted(value.split(",")) for name, value in answer.env.items()},
        "mounts": sorted((m.host_path, m.container_path, m.read_only) for m in answer.mounts),
        "devices": sorted((d.host_path, d.container_path, "rw") for d in answer.devices),
        "annotations": {
            re.sub("_[-0-9a-f]{36}$", "_", key): sorted(value.split(","))
            for key, value in answer.annotations.items()
        },
        "cdi": sorted(answer.cdi_devices),
    }


def plain_of(answer: api.ContainerAllocateResponse) -> dict[str, object]:
    nodes = {(d.host_path, d.container_path, d.permissions) for d in answer.devices}
    return {
        "env": {name: sorted(value.split(",")) for name, value in answer.envs.items()},
        "mounts": sorted((m.host_path, m.container_path, m.read_only) for m in answer.mounts),
        "devices": sorted(nodes),
        "annotations": {
            re.sub("_[-0-9a-f]{36}$", "_", key): sorted(value.split(","))
            for key, value in answer.annotations.items()
        },
        "cdi": sorted(device.name for device in answer.cdi_devices),
    }
