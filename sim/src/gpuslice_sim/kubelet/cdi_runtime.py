"""The part of a container runtime that applies CDI specifications.

Like containerd, it reads the specifications of its directory in the background after each change,
and creates containers with what it has read last.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from asyncinotify import Inotify, Mask

from gpuslice.kubelet.api import deviceplugin_pb2 as api

_CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.CLOSE_WRITE
_POLL_SECONDS = 0.05


class UnresolvableDevices(Exception):
    """No specification has a device that the container refers to."""


class CdiRuntime:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._devices: dict[str, list[Mapping[str, Any]]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._refresh()
        self._inotify = Inotify(sync_timeout=_POLL_SECONDS)
        self._inotify.add_watch(self.directory, _CHANGES)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._inotify.close()

    def create(
        self, answer: api.ContainerAllocateResponse, own_env: Mapping[str, str]
    ) -> api.ContainerAllocateResponse:
        """What the container has: Allocate's answer, then its own variables, then CDI's edits."""
        container = api.ContainerAllocateResponse()
        container.CopyFrom(answer)
        container.envs.update(own_env)
        with self._lock:
            names = list(dict.fromkeys(device.name for device in answer.cdi_devices))
            missing = [name for name in names if name not in self._devices]
            if missing:
                raise UnresolvableDevices(f"unresolvable CDI devices {', '.join(missing)}")
            for edits in [one for name in names for one in self._devices[name]]:
                _apply(edits, container)
        return container

    def _watch(self) -> None:
        while not self._stopped.is_set():
            if self._inotify.sync_get() is not None:
                self._refresh()

    def _refresh(self) -> None:
        """Under the lock, so that no container is created with a part of it."""
        with self._lock:
            devices: dict[str, list[Mapping[str, Any]]] = {}
            for path in sorted(self.directory.glob("*.json")):
                try:
                    spec = json.loads(path.read_bytes())
                except OSError:  # removed meanwhile
                    continue
                for device in spec["devices"]:
                    edits = [spec.get("containerEdits", {}), device["containerEdits"]]
                    devices[f"{spec['kind']}={device['name']}"] = edits
            self._devices = devices


def _apply(edits: Mapping[str, Any], container: api.ContainerAllocateResponse) -> None:
    container.envs.update(variable.split("=", 1) for variable in edits.get("env", ()))
    added = edits.get("mounts", ())
    places = {mount["containerPath"] for mount in added}
    kept = [mount for mount in container.mounts if mount.container_path not in places]
    del container.mounts[:]
    container.mounts.extend(kept)
    for mount in added:
        container.mounts.add(
            host_path=mount["hostPath"],
            container_path=mount["containerPath"],
            read_only="ro" in mount.get("options", ()),
        )
    for node in edits.get("deviceNodes", ()):
        container.devices.add(
            container_path=node["path"],
            host_path=node.get("hostPath", node["path"]),
            permissions=node.get("permissions", "rwm"),
        )
