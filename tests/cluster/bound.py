"""Agents that bind limits late, and pods that try to get more."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from gpuslice.slicing.threads import sms_at

from .harness import MPS_PIPE, Cluster, Node, Object, eventually
from .harness.daemonset import DEPLOY
from .pods import GIB, Seen, seen

NODE, UNITS = "node-b", 4 * 44
AGENT = ("agent", "--mps-pipe", MPS_PIPE, "--memory-advertise=all", "--memory-reserve=0")
_ACCOUNT, _NAMESPACE = "gpuslice-agent", "kube-system"
_PERMISSIONS = ("agent-watchdog-permissions", "agent-thread-annotations-permissions")


@contextlib.contextmanager
def bound_agent(cluster: Cluster, *flags: str) -> Iterator[Node]:
    """The agent of the node with these flags; it writes to the directory of CDI specifications."""
    node = cluster.node(NODE)
    specifications(node).mkdir()
    node.restart_agent(*AGENT, *flags)
    try:
        cluster.wait_for_amount(NODE)
        yield node
    finally:
        cluster.delete_pods()
        node.agent.stop()
        shutil.rmtree(specifications(node))
        node.restart_agent()
        cluster.wait_for_amount(NODE, UNITS)


def specifications(node: Node) -> Path:
    """As the node has it at /var/run/cdi."""
    return node.directory / "run" / "cdi"


def account(cluster: Cluster) -> Path:
    """A kubeconfig of the agent's account, with what the patches for the agent permit."""
    documents = list(yaml.safe_load_all((DEPLOY / "manifests" / "rbac.yaml").read_text()))
    for thing in documents:
        if thing["kind"] == "ServiceAccount" and thing["metadata"]["name"] == _ACCOUNT:
            cluster.apply(thing)
    for name in _PERMISSIONS:
        cluster.apply(DEPLOY / "patches" / f"{name}.yaml")
    token = cluster.kubectl(
        "create", "token", _ACCOUNT, f"--namespace={_NAMESPACE}", "--duration=24h"
    ).strip()
    return cluster.control_plane.credentials.add_kubeconfig(_ACCOUNT, token, _NAMESPACE)


def greedy(made: Object, node: Node) -> Object:
    """The same pod, which asks for whole GPUs in its own variables."""
    uuids = [gpu.uuid for gpu in node.sim.gpus()]
    variables = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{uuid}=44G" for uuid in uuids),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/elsewhere",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    for one in made["spec"]["containers"]:
        one["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return made


def check_limits(
    cluster: Cluster, node: Node, name: str, units: int, *, per_gib: int = 1, percent: int = 0
) -> Seen:
    """CUDA gives the container exactly its units, and this percentage of the threads.

    By default, it is as much of the threads as of the memory.
    """
    found = seen(cluster, name)
    gpu = node.sim.gpu(found.device["uuid"])
    of_gpu = gpu.memory_total_bytes * per_gib // GIB
    assert found.report["mps"] is True
    assert found.device["limit_bytes"] == units * GIB // per_gib
    assert found.device["sms"] == sms_at(percent or max(1, 100 * units // of_gpu), gpu.sms)
    return found


def end_container(node: Node, pod: Object) -> None:
    """Without the API server: the kubelet starts the container again."""
    [status] = pod["status"]["containerStatuses"]
    node.ctr("tasks", "kill", "--signal", "SIGKILL", status["containerID"].rpartition("/")[2])


def wait_for_second_start(node: Node, pod: Object) -> None:
    """Without the API server: by the log of the container."""
    [log] = [
        place / "main" / "1.log"
        for place in (node.directory / "pods").iterdir()
        if place.name.endswith(pod["metadata"]["uid"])
    ]
    eventually(
        lambda: log.exists() and '"devices"' in log.read_text(),
        "the container has started again",
        explain=lambda: node.kubelet.tail(),
    )
