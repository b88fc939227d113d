"""Settings and hardware -> the resources of the node and all that their answers refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuslice.agent.host import read_host
from gpuslice.agent.nested_files import keep_allotment, read_allotment
from gpuslice.agent.plan import Node, everything, plan_resources
from gpuslice.agent.resource import Plan
from gpuslice.config.settings import Settings
from gpuslice.inject.visible import Host
from gpuslice.slicing.allotment import apply_allotment
from gpuslice.slicing.catalogue import Catalogue, catalogue


@dataclass(frozen=True)
class Assembled:
    """The node as it is to be offered."""

    settings: Settings
    # As far as it is this node's to offer.
    node: Node
    found: Catalogue
    plans: Mapping[str, Plan]


def assemble(settings: Settings, node: Node) -> Assembled:
    """Blocks on the disk. Raises SlicingError or AgentError, and has then changed nothing."""
    node = _own_part(settings, node)
    inventory = node.inventory
    found = catalogue(inventory.gpus, settings.rules, inventory.stand_ins)
    keep = partial(keep_allotment, Path(settings.nested_directory))
    # Everything that can be wrong is found before the first file is written.
    plans = plan_resources(settings, node, found, read_host(settings), keep)
    if settings.containers.uses_cdi:
        plans = plan_resources(settings, node, found, _host_with_cdi(settings, node), keep)
    return Assembled(settings, node, found, plans)


def withdraw(settings: Settings) -> None:
    """At the end of the agent."""
    if settings.containers.uses_cdi and settings.cdi.remove_on_exit:
        from gpuslice.agent.cdi_files import CdiFiles

        CdiFiles(settings.cdi).remove()


def _host_with_cdi(settings: Settings, node: Node) -> Host:
    # Imported here: an agent without CDI does without the memory of all that describes a driver.
    from gpuslice.agent.cdi_files import CdiFiles

    inventory = node.inventory
    names = CdiFiles(settings.cdi).refresh(
        inventory.gpus,
        everything(inventory, settings.rules.mig_strategy),
        inventory.driver_version,
        settings.containers,
    )
    return read_host(settings, names)


def _own_part(settings: Settings, node: Node) -> Node:
    """A node inside another one sees all GPUs and was given some of them."""
    if settings.nested_env is None:
        return node
    file = Path(settings.nested_env)
    by_file = file.exists() or settings.nested_devices is None
    allotted = read_allotment(file if by_file else None, settings.nested_devices)
    own = apply_allotment(node.inventory.gpus, allotted)
    return replace(node, inventory=replace(node.inventory, gpus=own))
