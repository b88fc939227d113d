"""A real Kubernetes cluster on one machine, without Docker, with simulated GPUs."""

from __future__ import annotations

from .client import RESOURCE, Client
from .cluster import Cluster
from .existing import ExistingCluster
from .images import TEST_IMAGE
from .kube import ApiError, Kube, Object
from .node import MPS_PIPE, Node, NodeSpec
from .waiting import eventually

__all__ = [
    "MPS_PIPE",
    "RESOURCE",
    "TEST_IMAGE",
    "ApiError",
    "Client",
    "Cluster",
    "ExistingCluster",
    "Kube",
    "Node",
    "NodeSpec",
    "Object",
    "eventually",
]
