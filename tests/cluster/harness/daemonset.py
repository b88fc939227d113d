"""The agent as deploy/manifests/nvidia.yaml runs it, without an image: the same command, variables,
mounts and rights, on a node."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from gpuslice.codes import Code
from tests.unit.cluster.kubernetes import ConfigMap

from .cluster import Cluster
from .kube import Object
from .node import Node
from .waiting import eventually

DEPLOY = Path(__file__).parents[3] / "deploy"
MANIFEST = DEPLOY / "manifests" / "nvidia.yaml"
LABELS = DEPLOY / "manifests" / "nvidia-labels.yaml"
CDI_PATCH = DEPLOY / "patches" / "nvidia-cdi.yaml"
NAMESPACE = "kube-system"
ACCOUNT = "nvidia-device-plugin"


class DaemonSetAgent:
    def __init__(self, cluster: Cluster, node: Node, kubeconfig: Path) -> None:
        self.node = node
        self._cluster = cluster
        self._hook = cluster.binaries.peers.cdi_hook
        self._kubeconfig = kubeconfig
        documents = {thing["kind"]: thing for thing in manifest()}
        self._pod: Object = documents["DaemonSet"]["spec"]["template"]["spec"]
        patch_pod(self._pod, CDI_PATCH)
        [self.container] = self._pod["containers"]
        self.configs = ConfigMap(node.directory / "configs", **documents["ConfigMap"]["data"])
        self._original = dict(documents["ConfigMap"]["data"])

    @property
    def metrics_address(self) -> str:
        """Nodes share the network here, so each has the port on its own address."""
        return f"{self.node.address}:9400"

    def start(
        self, offers: Mapping[str, int], *, config: str | None = None, **variables: str
    ) -> None:
        """Returns when the node's status shows these resources.

        With the manifest's configurations, or with this as the default one. `variables` are
        settings in addition, as an administrator would edit the manifest.
        """
        changed = {} if config is None else {"default": config}
        self.configs.update(**self._original | changed)
        program, *arguments = self.container["command"]
        before = self._log_length()
        self.node.start_other_agent(
            program, *arguments, environment=self._variables() | variables, binds=self._binds()
        )
        # Until then, the node's status may be that of the agent before.
        for resource in offers:
            self._wait_for_line(f"{Code.REGISTERED}: .* resource={re.escape(resource)} ", before)
        self.wait_for(offers)

    def wait_for(self, offers: Mapping[str, int]) -> None:
        for resource, amount in offers.items():
            self._cluster.wait_for_amount(self.node.name, amount, resource=resource)

    @contextlib.contextmanager
    def logging(self, pattern: str) -> Iterator[None]:
        """What is done in the block makes the agent log a new line that matches the pattern."""
        before = self._log_length()
        yield
        self._wait_for_line(pattern, before)

    def stop(self) -> None:
        self.node.agent.stop()

    def _log_length(self) -> int:
        log = self.node.agent.log
        return log.stat().st_size if log.exists() else 0

    def _wait_for_line(self, pattern: str, after: int) -> None:
        agent = self.node.agent

        def logged() -> bool:
            agent.require()
            return re.search(pattern.encode(), agent.log.read_bytes()[after:]) is not None

        eventually(logged, f"the agent logs {pattern!r}", explain=agent.tail)

    def _variables(self) -> dict[str, str]:
        fields = {"spec.nodeName": self.node.name, "metadata.name": ""}
        given = {
            entry["name"]: entry["value"]
            if "value" in entry
            else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            for entry in self.container["env"]
        }
        # Each test chooses how the list of devices is passed.
        given.pop("DEVICE_LIST_STRATEGY")
        return given | {
            # What differs on a simulated node: its driver is not in the root of the machine, the
            # hook is not installed, and the agent has no pod to get the account's token from.
            "GPUSLICE_SIM_NODE": str(self.node.sim.directory),
            "NVIDIA_DRIVER_ROOT": str(self.node.sim.root),
            "NVIDIA_CDI_HOOK_PATH": str(self._hook),
            "GPUSLICE_METRICS_ADDRESS": self.metrics_address,
            "KUBECONFIG": str(self._kubeconfig),
        }

    def _binds(self) -> Mapping[str, Path]:
        """What the container has at another place than the node; the rest is there anyway."""
        sources = {
            volume["name"]: Path(volume["hostPath"]["path"])
            if "hostPath" in volume
            else self.configs.directory
            for volume in self._pod["volumes"]
        }
        sources["driver-root"] = self.node.sim.root
        places = {
            mount["mountPath"]: sources[mount["name"]] for mount in self.container["volumeMounts"]
        }
        return {place: source for place, source in places.items() if place != str(source)}


def patch_pod(pod: Object, path: Path) -> None:
    """With a patch, as `kubectl patch` applies it: lists are merged by name."""
    patch = yaml.safe_load(path.read_text())["spec"]["template"]["spec"]
    [container], [change] = pod["containers"], patch["containers"]
    for key in ("env", "volumeMounts"):
        container[key] = _merged(container[key], change[key])
    container["command"] = change.get("command", container.get("command"))
    pod["volumes"] = _merged(pod["volumes"], patch["volumes"])


def _merged(ours: list[Object], theirs: list[Object]) -> list[Object]:
    return list({one["name"]: one for one in (*ours, *theirs)}.values())


def manifest() -> list[Object]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def grant_access(cluster: Cluster) -> Path:
    """Everything of the manifest but the DaemonSet; returns a kubeconfig of its account.

    Some of the tests publish labels.
    """
    for thing in (*manifest(), *yaml.safe_load_all(LABELS.read_text())):
        if thing["kind"] != "DaemonSet":
            cluster.apply(thing)
    token = cluster.kubectl(
        "create", "token", ACCOUNT, f"--namespace={NAMESPACE}", "--duration=24h"
    ).strip()
    return cluster.control_plane.credentials.add_kubeconfig(ACCOUNT, token, NAMESPACE)
