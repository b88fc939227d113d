"""Settings and hardware -> everything the node offers; pure but for the allotment files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuslice.agent.devices import DevicePlan
from gpuslice.agent.memory import MemoryPlan
from gpuslice.agent.resource import Plan
from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.inject.mps import LimitKey
from gpuslice.inject.visible import Host
from gpuslice.slicing.catalogue import Catalogue
from gpuslice.slicing.device import Device, parts, whole
from gpuslice.slicing.errors import NothingToOffer, SlicingError
from gpuslice.slicing.rules import MigStrategy
from gpuslice.slicing.topology import Topology


@dataclass(frozen=True)
class Node:
    """What was found on the node, apart from what the settings make of it."""

    inventory: Inventory
    topology: Topology


def plan_resources(
    settings: Settings,
    node: Node,
    found: Catalogue,
    host: Host,
    keep_allotment: Callable[[str], str],
) -> Mapping[str, Plan]:
    """Raises SlicingError if nothing can be offered, or two resources have one name."""
    plans: dict[str, Plan] = {}
    driver = node.inventory.driver_version
    all_devices = everything(node.inventory, settings.rules.mig_strategy)
    for offer in found.resources:
        plans[offer.name] = DevicePlan(
            offer=offer,
            containers=settings.containers,
            host=host,
            policy=settings.policy,
            topology=node.topology,
            limit_key=LimitKey.for_driver(driver),
            everything=all_devices,
            keep_allotment=keep_allotment,
        )
    if found.memory:
        memory = MemoryPlan.of(settings.memory, settings.containers, host, found.memory, driver)
        if memory.name in plans:
            raise SlicingError(
                f"{memory.name} is the name of both memory units and GPUs: "
                "rename one of them (sharing.memory.resource)"
            )
        plans[memory.name] = memory
    if not plans:
        raise NothingToOffer("the rules leave nothing to offer on this node")
    return plans


def everything(inventory: Inventory, mig_strategy: MigStrategy) -> tuple[Device, ...]:
    """Every device that can be given out on this node, in whatever way it is offered."""
    cut = mig_strategy is not MigStrategy.NONE
    found = [parts(gpu) if cut and gpu.mig_enabled else (whole(gpu),) for gpu in inventory.gpus]
    return (*(device for devices in found for device in devices), *inventory.stand_ins)
