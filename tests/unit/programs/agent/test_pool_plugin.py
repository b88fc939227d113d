"""Devices that no CDI specification describes: unhealthy, and refused in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuslice.agent.assembly import Assembled
from gpuslice.agent.driver import Driver
from gpuslice.agent.labelling import Labelling
from gpuslice.agent.node_health import NodeHealth
from gpuslice.agent.plan import Node, plan_resources
from gpuslice.agent.resource import PlannedResource
from gpuslice.config.settings import ContainerSettings, DeviceList, Settings
from gpuslice.config.startup_options import StartupOptions
from gpuslice.gpus.inventory import Inventory
from gpuslice.inject.visible import Host
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.labels.errors import NodeUnreadable
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.rules import ALL, Rules
from gpuslice.slicing.topology import Topology

GPUS = (Gpu("GPU-a", 0, 0, "T4", 2048, (7, 5)), Gpu("GPU-b", 1, 1, "T4", 2048, (7, 5)))
BY_CDI = ContainerSettings(device_list=frozenset({DeviceList.CDI_CRI}))
HOST = Host(cdi_names={"GPU-b": "nvidia.com/gpu=GPU-b"})
NODE = Node(Inventory("570.1", GPUS), Topology())


def resource(rules: Rules) -> PlannedResource[Any]:
    settings = Settings(rules=rules, containers=BY_CDI)
    [plan] = plan_resources(settings, NODE, catalogue(GPUS, rules), HOST, str).values()
    return plan.serve(NodeHealth())


@pytest.mark.parametrize(
    ("rules", "healthy", "unknown", "known"),
    [
        (Rules(), 1, "GPU-a", "GPU-b"),
        (Rules(memory=ALL), 2, "GPU-a-_-0", "GPU-b-_-0"),
    ],
    ids=["whole", "memory"],
)
def test_what_cdi_does_not_describe_is_unhealthy_and_refused(
    rules: Rules, healthy: int, unknown: str, known: str
) -> None:
    served = resource(rules)
    assert served.healthy_devices() == (healthy, healthy)
    with pytest.raises(Refused, match="GPU-a has no CDI name"):
        served.allocate([[unknown]])
    [answer] = served.allocate([[known]])
    assert answer.cdi_devices == ("nvidia.com/gpu=GPU-b",)


def test_labels_stay_as_they_are_while_the_driver_is_away() -> None:
    async def look() -> None:
        labelling = Labelling(StartupOptions(), None, Driver())
        labelling.describe(Assembled(Settings(), NODE, catalogue(GPUS, Rules()), {}))
        await labelling._labels()

    with pytest.raises(NodeUnreadable, match="not there at the moment"):
        asyncio.run(look())
