"""What can be asked of any cluster through its API."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .images import TEST_IMAGE
from .kube import ApiError, Kube, Object
from .waiting import PATIENCE_SECONDS, eventually

RESOURCE = "aliyun.com/gpu-mem"


class Client:
    """Everything happens in one namespace. Subclasses say how the cluster is reached."""

    namespace = "default"
    image = TEST_IMAGE
    """What the containers of the scenarios run."""
    gpu_node: str
    """A node that offers slices."""
    kube: Kube
    kubectl_program: Path
    kubectl_environment: dict[str, str]
    """Makes kubectl talk to this cluster, and to the namespace unless an object names another."""

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Its output; RuntimeError with what it said if it fails."""
        done = subprocess.run(
            [self.kubectl_program, *arguments],
            env=dict(os.environ) | self.kubectl_environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, manifest: Mapping[str, Any] | str | Path) -> str:
        """YAML, a file of it, or an object; checked strictly."""
        if isinstance(manifest, Path):
            text = manifest.read_text()
        else:
            text = manifest if isinstance(manifest, str) else yaml.safe_dump(dict(manifest))
        return self.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)

    def create(self, thing: Mapping[str, Any]) -> Object:
        return self.kube.create(thing, namespace=self.namespace, fieldValidation="Strict")

    def pod(self, name: str) -> Object:
        return self.kube.get(f"{self._path('pods')}/{name}")

    def pods(self, **query: str) -> list[Object]:
        return self.kube.items(self._path("pods"), **query)

    def wait_for_pod(
        self,
        name: str,
        phase: str = "Running",
        *,
        ready: bool = False,
        timeout: float = PATIENCE_SECONDS,
    ) -> Object:
        """The pod, once it is in this phase (and ready)."""

        def check() -> Object | None:
            pod = self.pod(name)
            statuses = pod["status"].get("containerStatuses", [])
            all_ready = bool(statuses) and all(status["ready"] for status in statuses)
            if pod["status"]["phase"] == phase and (all_ready or not ready):
                return pod
            if pod["status"]["phase"] in ("Failed", "Succeeded"):
                raise RuntimeError(f"pod {name} will never be {phase}\n{explain()}")
            return None

        def explain() -> str:
            status = yaml.safe_dump(self.pod(name)["status"])
            return f"{status}\nevents:\n" + "\n".join(self.events(name))

        return eventually(check, f"pod {name} is {phase}", timeout=timeout, explain=explain)

    def delete_pods(self, *names: str) -> None:
        """Returns when they are gone, so what they held is free; all pods if none is named."""
        told: set[str] = set()

        def gone() -> bool:
            left = [pod["metadata"] for pod in self.pods()]
            left = [metadata for metadata in left if not names or metadata["name"] in names]
            for metadata in left:  # a controller may have made new ones meanwhile
                if metadata["uid"] not in told:
                    told.add(metadata["uid"])
                    self._delete_pod(metadata["name"])
            return not left

        eventually(gone, f"{', '.join(names) or 'all'} pods are gone")

    def _delete_pod(self, name: str) -> None:
        try:
            self.kube.delete(f"{self._path('pods')}/{name}", grace_seconds=1)
        except ApiError as error:
            if error.status != 404:
                raise

    def logs(self, pod: str, container: str = "main") -> str:
        return self.kube.text(f"{self._path('pods')}/{pod}/log", container=container)

    def events(self, pod: str) -> list[str]:
        """Reason and message of each event, oldest first; none of an earlier pod of that name."""
        return self.events_about(self.pod(pod)["metadata"]["uid"])

    def events_about(self, uid: str) -> list[str]:
        """As `events`; a Node's events have its name in this place."""
        found = self.kube.items(self._path("events"), fieldSelector=f"involvedObject.uid={uid}")
        found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [f"{event['reason']}: {event['message']}" for event in found]

    def amount(self, node: str, field: str = "allocatable", resource: str = RESOURCE) -> int:
        """How much of the resource the node's status shows; 0 if the node does not name it."""
        return _amount(self.kube.get(f"/api/v1/nodes/{node}"), field, resource)

    def offers(self) -> dict[str, int]:
        """Node -> allocatable units, of the nodes that have any."""
        nodes = self.kube.items("/api/v1/nodes")
        amounts = {n["metadata"]["name"]: _amount(n, "allocatable", RESOURCE) for n in nodes}
        return {name: amount for name, amount in amounts.items() if amount}

    def wait_for_service_account(self) -> None:
        """A namespace takes no pods without it."""
        account = f"{self._path('serviceaccounts')}/default"
        eventually(
            lambda: self.kube.find(account),
            f"namespace {self.namespace} has its service account",
        )

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"


def _amount(node: Object, field: str, resource: str) -> int:
    return int(node["status"].get(field, {}).get(resource, 0))
