"""Settings and hardware -> the resources of the node and all that their answers refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.agent.errors import AgentError
from gpuslice.agent.host import read_host
from gpuslice.agent.nested_files import keep_allotment
from gpuslice.agent.plan import Node, everything, plan_resources
from gpuslice.agent.resource import Plan
from gpuslice.config.settings import Settings
from gpuslice.gpus.allotment import own_part
from gpuslice.slicing.catalogue import Catalogue, catalogue

if TYPE_CHECKING:
    from gpuslice.agent.cdi_files import CdiNames


@dataclass(frozen=True)
class Assembled:
    """The node as it is to be offered."""

    settings: Settings
    # As far as it is this node's to offer.
    node: Node
    found: Catalogue
    plans: Mapping[str, Plan]
    # Device nodes that should be there; while they are not, their devices are unhealthy.
    awaited: tuple[Path, ...] = ()


def assemble(settings: Settings, node: Node) -> Assembled:
    """Blocks on the disk. Raises SlicingError or AgentError, and has then changed nothing."""
    try:
        return _assemble(settings, node)
    except OSError as error:  # files come and go while a driver is being replaced
        raise AgentError(f"the node cannot be read ({error})") from error


def _assemble(settings: Settings, node: Node) -> Assembled:
    inventory = own_part(node.inventory, settings)
    node = replace(node, inventory=inventory)
    found = catalogue(inventory.gpus, settings.rules, inventory.stand_ins)
    keep = partial(keep_allotment, Path(settings.nested_directory))
    # Everything that can be wrong is found before the first file is written.
    plans = plan_resources(settings, node, found, read_host(settings), keep)
    if not settings.containers.uses_cdi:
        return Assembled(settings, node, found, plans)
    names = _refresh_cdi(settings, node)
    plans = plan_resources(settings, node, found, read_host(settings, names), keep)
    return Assembled(settings, node, found, plans, names.awaited)


def withdraw(settings: Settings) -> None:
    """At the end of the agent."""
    if settings.containers.uses_cdi and settings.cdi.remove_on_exit:
        from gpuslice.agent.cdi_files import CdiFiles

        CdiFiles(settings.cdi).remove()


def _refresh_cdi(settings: Settings, node: Node) -> CdiNames:
    # Imported here: an agent without CDI does without the memory of all that describes a driver.
    from gpuslice.agent.cdi_files import CdiFiles

    inventory = node.inventory
    return CdiFiles(settings.cdi).refresh(
        inventory.gpus,
        everything(inventory, settings.rules.mig_strategy),
        inventory.driver_version,
        settings.containers,
    )
