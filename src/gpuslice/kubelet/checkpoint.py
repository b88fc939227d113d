"""Reads the kubelet's checkpoint of devices: which container got which devices, and how.

Its format is internal to the kubelet, so it is only used where the kubelet's API has no answer: it
has init containers, and the answers of Allocate. It names pods by UID.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from gpuslice.files.untrusted import read_untrusted
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.slicing.holders import Holder

_FILE = "kubelet_internal_checkpoint"
# Thousands of containers, each with a long list of devices.
_LONGEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    resource: str
    holder: Holder
    # The CDI devices that Allocate's answer names.
    cdi_devices: tuple[str, ...] = ()


def read_checkpoint(kubelet_socket: Path) -> tuple[CheckpointEntry, ...]:
    """Empty if there is none, or if it has another format. Blocks."""
    try:
        content = json.loads(read_untrusted(kubelet_socket.parent / _FILE, _LONGEST_BYTES))
        return tuple(map(_entry, _entries(content)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DecodeError, RecursionError):
        return ()


def _entries(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from content["Data"]["PodDeviceEntries"] or ()


def _entry(entry: Mapping[str, Any]) -> CheckpointEntry:
    ids = entry["DeviceIDs"]
    # By NUMA node; kubelets before 1.20 have a plain list.
    lists = ids.values() if isinstance(ids, dict) else [ids]
    answer = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"] or ""))
    return CheckpointEntry(
        str(entry["ResourceName"]),
        Holder(
            str(entry["PodUID"]),
            str(entry["ContainerName"]),
            frozenset(str(one) for some in lists for one in some),
        ),
        tuple(device.name for device in answer.cdi_devices),
    )
