"""Pods of the scenarios, and what their containers see."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuslice_sim.node import SimGpu, SimMig, SimNode

from .harness import RESOURCE, TEST_IMAGE, Client, Cluster, Object, eventually

GIB = 1 << 30
# Says which GPUs and variables it has, then what CUDA gives it, and keeps it all. An image of an
# existing cluster may lack simcuda; the shell then waits, as a first process that SIGTERM can end.
_LIST = "trap exit TERM; ls /dev /dev/nvidia-caps 2>/dev/null; env; "
_SAY = _LIST + "command -v simcuda >/dev/null && exec simcuda"
_USE = ("sh", "-c", _SAY + " hold; echo {}; while :; do sleep 1; done")
# Without MPS, CUDA would need more of the driver than a container of ours has.
_SHOW = (
    "sh",
    "-c",
    _LIST + "cat $NVIDIA_ALLOCATED_DEVICES_FILE </dev/null; echo {}; sleep 100000 & wait",
)
_LOOK = ("sh", "-c", _SAY + " info; echo {}")


@dataclass(frozen=True)
class Seen:
    """What a container found: its GPU device nodes, its variables and simcuda's report."""

    gpu_nodes: tuple[str, ...]
    variables: dict[str, str]
    report: dict[str, Any]
    """Empty if the image has no simcuda."""
    cap_nodes: tuple[str, ...] = ()
    """Device nodes that open MIG devices."""
    text: str = ""
    """All that it printed."""

    @property
    def device(self) -> dict[str, Any]:
        """The only GPU that CUDA shows it."""
        [device] = self.report["devices"]
        return dict(device)


def container(
    units: int, name: str = "main", *, command: Sequence[str] = _USE, image: str = TEST_IMAGE
) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never" if image == TEST_IMAGE else "IfNotPresent",
        "command": list(command),
        "resources": {"limits": {RESOURCE: str(units)}} if units else {},
    }


def short_container(units: int, name: str = "main", *, image: str = TEST_IMAGE) -> Object:
    """Looks around and ends."""
    return container(units, name, command=_LOOK, image=image)


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


def slice_pod(
    name: str, units: int, node: str | None = "node-a", *, image: str = TEST_IMAGE
) -> Object:
    return pod(name, container(units, image=image), node=node)


def spread_evenly(pod: Object) -> Object:
    """The same pod, one of a group of which the scheduler gives every node the same number."""
    group = {"group": "spread"}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": group},
    }
    return pod | {
        "metadata": pod["metadata"] | {"labels": group},
        "spec": pod["spec"] | {"topologySpreadConstraints": [constraint]},
    }


def device_pod(
    name: str,
    node: str,
    limits: Mapping[str, int],
    *,
    mps: bool = False,
    runtime_class: str | None = "nvidia",
) -> Object:
    """Resources by name, as those of NVIDIA's device plugin; with MPS, it is a CUDA program."""
    wishes = {"limits": {resource: str(amount) for resource, amount in limits.items()}}
    program = container(0, command=_USE if mps else _SHOW)
    made = pod(name, program | {"resources": wishes}, node=node)
    made["spec"]["runtimeClassName"] = runtime_class
    return made


def restart_container(client: Client, name: str) -> None:
    """Ends the container's first process; the kubelet starts it anew."""
    before = container_status(client.pod(name))["containerID"]
    said = "nothing"
    try:
        client.kubectl("exec", name, "--", "sh", "-c", "kill -TERM 1")
    except RuntimeError as error:  # the shell is killed along with the container
        said = str(error)

    def renewed() -> bool:
        status = container_status(client.pod(name))
        return "running" in status["state"] and status["containerID"] != before

    eventually(renewed, f"the container of {name} is a new one", explain=lambda: said)


def container_status(pod: Object) -> Object:
    """Without the health of its devices, whose order the kubelet does not keep."""
    [status] = pod["status"]["containerStatuses"]
    return {key: value for key, value in status.items() if key != "allocatedResourcesStatus"}


def event(client: Client, name: str, reason: str) -> str:
    """The pod's only event for this reason, which may come after the status that it is about."""
    [found] = eventually(
        lambda: [text for text in client.events(name) if text.startswith(f"{reason}: ")],
        f"pod {name} has an event {reason}",
        explain=lambda: "\n".join(client.events(name)),
    )
    return found


def seen(client: Client, name: str, container_name: str = "main") -> Seen:
    """Waits until the container has said it all."""

    def read() -> Seen | None:
        text = client.logs(name, container_name)
        lines = text.splitlines()
        if not text.endswith("\n") or not lines[-1].startswith("{"):
            return None
        nodes = [line for line in lines if re.fullmatch(r"nvidia\d+", line)]
        caps = [line for line in lines if re.fullmatch(r"nvidia-cap\d+", line)]
        variables = dict(line.split("=", 1) for line in lines[:-1] if "=" in line)
        report = json.loads(lines[-1])
        return Seen(tuple(sorted(nodes)), variables, report, tuple(sorted(caps)), "\n".join(lines))

    return eventually(
        read,
        f"container {container_name} of pod {name} has reported",
        explain=lambda: client.logs(name, container_name),
    )


def assigned_gpu(cluster: Cluster, node: str, name: str, container_name: str = "main") -> str:
    """The UUID of the GPU whose units the container has, as the kubelet says by PodResources."""
    ids = cluster.pod_resources(node)[name, container_name][RESOURCE]
    [uuid] = {device_id.partition("-_-")[0] for device_id in ids}
    return uuid


def check_received(client: Client, name: str, units: int, where: str = "main") -> Seen:
    """The container has what it asked for, on one GPU, as far as it can tell by itself."""
    found = seen(client, name, where)
    gpu = found.variables["CUDA_VISIBLE_DEVICES"]
    limit = found.variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    assert found.gpu_nodes == (f"nvidia{found.variables['ALIYUN_COM_GPU_MEM_IDX']}",)
    # With CDI, NVIDIA's runtime blanks the variable that it has followed.
    assert found.variables["NVIDIA_VISIBLE_DEVICES"] in (gpu, "void")
    assert found.variables["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(units)
    assert limit in (f"{gpu}={units * 1024}M", f"0={units * 1024}M")
    if found.report or client.image == TEST_IMAGE:
        assert found.report["mps"] is True
        assert found.device["uuid"] == gpu
        assert found.device["limit_bytes"] == units * GIB
    return found


def check_slice(client: Client, node: str, name: str, units: int, where: str = "main") -> Seen:
    """As `check_received`; in a cluster of ours, also on the GPU that the kubelet says."""
    found = check_received(client, name, units, where)
    if isinstance(client, Cluster):
        check_gpu(client, node, name, found, where)
    return found


def check_gpu(cluster: Cluster, node: str, name: str, found: Seen, where: str) -> None:
    gpu = cluster.node(node).sim.gpu(assigned_gpu(cluster, node, name, where))
    assert found.gpu_nodes == (f"nvidia{gpu.minor}",)
    assert found.device["uuid"] == gpu.uuid


def check_devices(cluster: Cluster, node: str, name: str) -> Seen:
    """The container has the device nodes of what the kubelet says, and no others."""
    found = seen(cluster, name)
    sim = cluster.node(node).sim
    nodes, caps = set(), set()
    for uuid in assigned_devices(cluster, node, name):
        gpu = next(gpu for gpu in sim.gpus() if uuid in (gpu.uuid, *(m.uuid for m in gpu.mig)))
        nodes.add(f"nvidia{gpu.minor}")
        for mig in gpu.mig:
            if mig.uuid == uuid:
                caps |= cap_nodes(sim, gpu, mig)
    assert set(found.gpu_nodes) == nodes
    assert set(found.cap_nodes) == caps
    return found


def assigned_devices(cluster: Cluster, node: str, name: str) -> set[str]:
    """UUIDs of GPUs and MIG devices, as the kubelet says by PodResources."""
    resources = cluster.pod_resources(node)[name, "main"]
    ids = [device_id for ids in resources.values() for device_id in ids]
    return {device_id.partition("::")[0].partition("-_-")[0] for device_id in ids}


def cap_nodes(sim: SimNode, gpu: SimGpu, mig: SimMig) -> set[str]:
    """By the driver's own list, so this does not depend on how anybody counts."""
    minors = (sim.root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    known = dict(line.split(" ") for line in minors)
    place = f"gpu{gpu.minor}/gi{mig.gi}"
    return {f"nvidia-cap{known[f'{place}{part}/access']}" for part in ("", f"/ci{mig.ci}")}


def check_nothing_is_double_booked(cluster: Cluster, node: str) -> None:
    """No unit belongs to two containers, and no GPU has more units out than it has."""
    units = [
        device_id
        for resources in cluster.pod_resources(node).values()
        for device_id in resources.get(RESOURCE, [])
    ]
    assert len(units) == len(set(units))
