"""Settings and hardware -> the resources of the node."""

from __future__ import annotations

import pytest

from gpuslice.agent.devices import DevicePlan
from gpuslice.agent.memory import MemoryPlan
from gpuslice.agent.plan import Node, everything, plan_resources
from gpuslice.config.settings import MemorySettings, Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.inject.visible import Host
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy, Rules, Selection
from gpuslice.slicing.topology import Topology

CUT = Gpu(
    "GPU-a",
    0,
    0,
    "A100",
    40960,
    mig_capable=True,
    mig_enabled=True,
    mig=(MigDevice("MIG-a", 0, 7, 0, "1g.5gb", 4864),),
)
WHOLE = Gpu("GPU-b", 1, 1, "A100", 40960, mig_capable=True)


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("570.1", gpus)


@pytest.mark.parametrize(
    ("strategy", "uuids"),
    [
        (MigStrategy.NONE, ["GPU-a", "GPU-b"]),
        (MigStrategy.MIXED, ["MIG-a", "GPU-b"]),
        (MigStrategy.SINGLE, ["MIG-a", "GPU-b"]),
    ],
)
def test_a_gpu_counts_as_its_parts_where_they_are_what_is_given_out(
    strategy: MigStrategy, uuids: list[str]
) -> None:
    assert [device.uuid for device in everything(inventory(CUT, WHOLE), strategy)] == uuids


def planned(rules: Rules, memory: MemorySettings) -> dict[str, type]:
    settings = Settings(rules=rules, memory=memory)
    node = Node(inventory(CUT, WHOLE), Topology())
    plans = plan_resources(settings, node, catalogue((CUT, WHOLE), rules), Host(), str)
    return {name: type(plan) for name, plan in plans.items()}


def test_memory_units_and_devices_are_planned_side_by_side() -> None:
    rules = Rules(mig_strategy=MigStrategy.MIXED, memory=Selection(references=("1",)))
    assert planned(rules, MemorySettings(resource="example.com/mem")) == {
        "nvidia.com/mig-1g.5gb": DevicePlan,
        "example.com/mem": MemoryPlan,
    }


def test_one_name_for_memory_units_and_devices_is_refused() -> None:
    rules = Rules(mig_strategy=MigStrategy.MIXED, memory=Selection(references=("1",)))
    with pytest.raises(SlicingError, match="is the name of both memory units and GPUs"):
        planned(rules, MemorySettings(resource="nvidia.com/mig-1g.5gb"))
