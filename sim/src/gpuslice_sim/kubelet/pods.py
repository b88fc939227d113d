"""Pods, and the devices that their containers hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, uuid5

from gpuslice.kubelet.api import deviceplugin_pb2 as api


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    requests: dict[str, int]
    init: bool = False
    # The variables that the pod itself sets.
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    containers: list[Container]
    namespace: str = "default"

    @property
    def uid(self) -> str:
        return str(uuid5(NAMESPACE_URL, f"{self.namespace}/{self.name}"))


@dataclass(slots=True)
class Allocation:
    """The devices of one resource that a container holds, and the answer of the plugin."""

    pod: Pod
    container: Container
    resource: str
    ids: list[str]
    response: api.ContainerAllocateResponse


class AdmissionError(Exception):
    """The pod fails permanently, like a pod with the reason UnexpectedAdmissionError."""


class StartError(Exception):
    """The container must not start now. The real kubelet retries later."""
