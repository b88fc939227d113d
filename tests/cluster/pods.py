"""Pods of the scenarios, and what their containers see."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .harness import RESOURCE, TEST_IMAGE, Cluster, Object, eventually

GIB = 1 << 30
# Says which GPUs it has, then what CUDA gives it, and keeps both.
_USE = ("sh", "-c", "ls /dev; exec simcuda hold")
_LOOK = ("sh", "-c", "ls /dev; exec simcuda info")


@dataclass(frozen=True)
class Seen:
    """What a container found: its GPU device nodes and simcuda's report."""

    gpu_nodes: tuple[str, ...]
    report: dict[str, Any]

    @property
    def device(self) -> dict[str, Any]:
        """The only GPU that CUDA shows it."""
        [device] = self.report["devices"]
        return dict(device)


def container(units: int, name: str = "main", *, command: Sequence[str] = _USE) -> Object:
    return {
        "name": name,
        "image": TEST_IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": {RESOURCE: str(units)}} if units else {},
    }


def short_container(units: int, name: str = "main") -> Object:
    """Looks around and ends."""
    return container(units, name, command=_LOOK)


def pod(
    name: str,
    *containers: Object,
    init: Sequence[Object] = (),
    node: str | None = None,
    restart: str = "Always",
) -> Object:
    """`node` is where the scheduler may place it; it still decides whether the pod fits."""
    spec: Object = {
        "runtimeClassName": "nvidia",
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "initContainers": list(init),
        "containers": list(containers),
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def slice_pod(name: str, units: int, node: str | None = "node-a") -> Object:
    return pod(name, container(units), node=node)


def seen(cluster: Cluster, name: str, container_name: str = "main") -> Seen:
    """Waits until the container has said it all."""

    def read() -> Seen | None:
        lines = cluster.logs(name, container_name).splitlines()
        if not lines or not lines[-1].startswith("{"):
            return None
        nodes = [line for line in lines if re.fullmatch(r"nvidia\d+", line)]
        return Seen(tuple(sorted(nodes)), json.loads(lines[-1]))

    return eventually(
        read,
        f"container {container_name} of pod {name} has reported",
        explain=lambda: cluster.logs(name, container_name),
    )


def assigned_gpu(cluster: Cluster, node: str, name: str, container_name: str = "main") -> str:
    """The UUID of the GPU whose units the container has, as the kubelet says by PodResources."""
    ids = cluster.pod_resources(node)[name, container_name][RESOURCE]
    [uuid] = {device_id.partition("-_-")[0] for device_id in ids}
    return uuid


def check_slice(cluster: Cluster, node: str, name: str, units: int, where: str = "main") -> Seen:
    """The container has what it asked for, on the GPU that the kubelet says, and no other GPU."""
    found = seen(cluster, name, where)
    gpu = cluster.node(node).sim.gpu(assigned_gpu(cluster, node, name, where))
    assert found.gpu_nodes == (f"nvidia{gpu.minor}",)
    assert found.report["mps"] is True
    assert found.device["uuid"] == gpu.uuid
    assert found.device["limit_bytes"] == units * GIB
    return found


def check_nothing_is_double_booked(cluster: Cluster, node: str) -> None:
    """No unit belongs to two containers, and no GPU has more units out than it has."""
    units = [
        device_id
        for resources in cluster.pod_resources(node).values()
        for device_id in resources.get(RESOURCE, [])
    ]
    assert len(units) == len(set(units))
