"""Small units: so many devices that their list almost fills one message to the kubelet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import MPS_PIPE, RESOURCE, Cluster, Node
from .pods import check_nothing_is_double_booked, seen, slice_pod

NODE = "node-b"
MIB = 1 << 20


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    node = cluster.node(NODE)
    yield node
    cluster.delete_pods()
    node.restart_agent()
    cluster.wait_for_amount(NODE, 4 * 44)


def test_units_of_a_mebibyte_near_the_message_limit(cluster: Cluster, node: Node) -> None:
    node.restart_agent(
        "agent",
        "--mps-pipe",
        MPS_PIPE,
        "--memory-advertise=all",
        "--memory-reserve=0",
        "--memory-unit=MiB",
    )
    cluster.wait_for_amount(NODE, 4 * 46068)  # a list of 4,009,544 bytes at its worst
    sizes = {"small": 700, "large": 30000, "other": 40001}
    for name, units in sizes.items():
        cluster.create(slice_pod(name, units, node=NODE))
        cluster.wait_for_pod(name)
    for name, units in sizes.items():
        found = seen(cluster, name)
        assert found.device["limit_bytes"] == units * MIB
        ids = cluster.pod_resources(NODE)[name, "main"][RESOURCE]
        assert len(ids) == units
        [minor] = {device_id.partition("-")[0] for device_id in ids}
        assert found.gpu_nodes == (f"nvidia{minor}",)
    check_nothing_is_double_booked(cluster, NODE)
