"""A real Kubernetes cluster on one machine, without Docker, with simulated GPUs."""

from __future__ import annotations

from .cluster import RESOURCE, Cluster
from .images import TEST_IMAGE
from .kube import ApiError, Kube, Object
from .node import MPS_PIPE, Node, NodeSpec
from .waiting import eventually

__all__ = [
    "MPS_PIPE",
    "RESOURCE",
    "TEST_IMAGE",
    "ApiError",
    "Cluster",
    "Kube",
    "Node",
    "NodeSpec",
    "Object",
    "eventually",
]
