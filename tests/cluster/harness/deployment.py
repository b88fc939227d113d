"""A DaemonSet of deploy/manifests as an administrator applies it: pods of our own image."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import gpuslice_sim
from gpuslice_sim.node import PLACE_IN_CONTAINERS
from tests.timing import timing

from .client import Client
from .kube import Object
from .waiting import eventually

# Debian's Python looks there, whatever its version.
_MODULES = "/usr/lib/python3/dist-packages/gpuslice_sim"


class Deployment:
    """The objects of a manifest, in the cluster for as long as the block lasts."""

    def __init__(self, cluster: Client, things: Iterable[Object]) -> None:
        self._cluster = cluster
        self._things = [_simulated(t) if t["kind"] == "DaemonSet" else t for t in things]
        [self._daemon_set] = [t for t in self._things if t["kind"] == "DaemonSet"]
        self.name: str = self._daemon_set["metadata"]["name"]
        self.namespace: str = self._daemon_set["metadata"]["namespace"]

    def __enter__(self) -> Self:
        for thing in self._things:
            self._cluster.apply(thing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"{self.name}:\n{self.describe()}")
        for thing in reversed(self._things):
            self._kubectl("delete", thing["kind"], thing["metadata"]["name"],
                          f"--namespace={thing['metadata'].get('namespace', 'default')}",
                          "--ignore-not-found", "--wait=false")  # fmt: skip
        eventually(lambda: not self.pods(), f"the pods of {self.name} are gone")

    def pods(self) -> list[Object]:
        labels = self._daemon_set["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return self._cluster.kube.items(path, labelSelector=selector)

    def wait_for_pods(self, *nodes: str, other_than: Sequence[Object] = ()) -> list[Object]:
        """One on each of these nodes and none elsewhere, all of them ready and none of those."""
        old = {pod["metadata"]["uid"] for pod in other_than}

        def check() -> list[Object] | None:
            pods = self.pods()
            there = sorted(pod["spec"].get("nodeName", "") for pod in pods)
            fresh = not old & {pod["metadata"]["uid"] for pod in pods}
            return pods if there == sorted(nodes) and fresh and all(map(is_ready, pods)) else None

        return eventually(check, f"{self.name} is ready on {nodes}", explain=self.describe)

    def restart(self) -> None:
        """As after an upgrade: every pod is replaced by a new one."""
        before = self.pods()
        self._kubectl("rollout", "restart", "daemonset", self.name, f"--namespace={self.namespace}")
        self.wait_for_pods(*(pod["spec"]["nodeName"] for pod in before), other_than=before)

    def execute(self, pod: Object, *command: str) -> str:
        name = pod["metadata"]["name"]
        return self._kubectl("exec", name, f"--namespace={self.namespace}", "--", *command)

    def describe(self) -> str:
        parts = []
        for pod in self.pods():
            name = pod["metadata"]["name"]
            parts.append(self._kubectl("describe", "pod", name, f"--namespace={self.namespace}"))
            try:
                parts.append(self.log(pod))
            except RuntimeError as error:  # it has not started
                parts.append(str(error))
        return "\n".join(parts)

    def log(self, pod: Object) -> str:
        return self._kubectl("logs", pod["metadata"]["name"], f"--namespace={self.namespace}")

    def _kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl(*arguments)


def is_ready(pod: Object) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    leaving = "deletionTimestamp" in pod["metadata"]
    return conditions.get("Ready") == "True" and not leaving


def _simulated(daemon_set: Object) -> Object:
    """With what the device nodes are to the real driver: the way to its state, outside the
    container. Programs of the driver that are scripts here also need their modules. Nothing waits
    for an interval of the program or of its readiness probe."""
    places = {
        "simulated-driver": (PLACE_IN_CONTAINERS, PLACE_IN_CONTAINERS),
        "simulation": (str(Path(gpuslice_sim.__file__).parent), _MODULES),
    }
    changed = copy.deepcopy(daemon_set)
    pod = changed["spec"]["template"]["spec"]
    for name, (path, mount_path) in places.items():
        pod["volumes"].append({"name": name, "hostPath": {"path": path}})
        for container in pod["containers"]:
            container["volumeMounts"].append({"name": name, "mountPath": mount_path})
    for container in pod["containers"]:
        quick = [{"name": name, "value": value} for name, value in timing().items()]
        container["env"] = container.get("env", []) + quick
        if probe := container.get("readinessProbe"):
            probe["periodSeconds"] = 1
    return changed
