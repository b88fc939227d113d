"""Pods, and the devices that their containers hold."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.kubelet.api import deviceplugin_pb2 as api


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    requests: dict[str, int]
    init: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    containers: list[Container]
    namespace: str = "default"


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
