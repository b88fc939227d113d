"""Settings and hardware -> the resources of the node and all that their answers refer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.agent.errors import AgentError
from gpuslice.agent.host import read_host
from gpuslice.agent.nested_files import keep_allotment, prepare_allotments
from gpuslice.agent.plan import Node, everything, plan_resources
from gpuslice.agent.resource import Plan
from gpuslice.config.settings import CdiSettings, Settings
from gpuslice.gpus.allocated_devices import own_part
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
    """Blocks on the disk. Raises SlicingError or AgentError, and has then changed nothing.

    Settings that are new need `check_directories` as well.
    """
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


def check_directories(assembled: Assembled) -> None:
    """Raises AgentError where containers would be refused for want of a place to write to.

    Apart from `assemble`: a place that is lost later must not take GPUs off the node that have no
    need of it.
    """
    if any(offer.nested for offer in assembled.found.resources):
        prepare_allotments(Path(assembled.settings.nested_directory))


def withdraw(settings: CdiSettings, directories: Iterable[str]) -> None:
    """At the end of the agent. `directories` are all that it has written CDI files to."""
    if not settings.remove_on_exit:
        return
    from gpuslice.agent.cdi_files import CdiFiles

    for directory in sorted(directories):
        CdiFiles(replace(settings, directory=directory)).remove()


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
