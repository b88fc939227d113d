"""The kubelet's checkpoint of devices, in the format of the real one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path

from gpuslice_sim.kubelet.pods import Allocation

_FILE = "kubelet_internal_checkpoint"


def write_checkpoint(directory: Path, allocations: Iterable[Allocation]) -> None:
    entries = [
        {
            "PodUID": one.pod.uid,
            "ContainerName": one.container.name,
            "ResourceName": one.resource,
            # By NUMA node; -1: none.
            "DeviceIDs": {"-1": one.ids},
            "AllocResp": base64.b64encode(one.response.SerializeToString()).decode(),
        }
        for one in allocations
    ]
    content = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}
    draft = directory / f".{_FILE}"
    draft.write_text(json.dumps(content))
    draft.rename(directory / _FILE)
