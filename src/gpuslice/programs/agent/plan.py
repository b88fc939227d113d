"""Settings and hardware -> everything that the agent advertises and injects."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.codes import Code
from gpuslice.config.settings import MpsCheck, Settings
from gpuslice.gpus.allocated_devices import ListVersion, list_version, own_gpus
from gpuslice.gpus.faults import Fault, fault_of
from gpuslice.gpus.inventory import Inventory
from gpuslice.inject.container import Injection
from gpuslice.inject.mps import LimitKey
from gpuslice.inject.nested import NestedLists
from gpuslice.inject.visible import can_be_injected
from gpuslice.mps.control import PROGRAM
from gpuslice.mps.daemons import Daemon, daemons_of
from gpuslice.node.driver import Hardware
from gpuslice.node.errors import ProgramError, unreadable
from gpuslice.node.notices import hardware_notices
from gpuslice.programs.agent.binding import BindingPlan, check_partitions, plan_binding
from gpuslice.programs.agent.host import read_host
from gpuslice.programs.agent.nested_files import check_nested_directory, write_nested_file
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.device import Device, mig_devices, whole
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MigStrategy
from gpuslice.slicing.topology import Topology

if TYPE_CHECKING:
    from gpuslice.cdi.node_specs import CdiNames


@dataclass(frozen=True)
class AgentPlan:
    settings: Settings
    # The GPUs that this node owns; a nested node sees more.
    inventory: Inventory
    topology: Topology
    pools: tuple[Pool, ...]
    notices: tuple[Notice, ...]
    # Devices that cannot be injected.
    faults: tuple[Fault, ...]
    injection: Injection
    # None: no pool has limits.
    binding: BindingPlan | None = None
    # Device nodes that are missing; their devices are unhealthy until they appear.
    awaited: tuple[Path, ...] = ()
    # Of the file with the GPUs of a nested node, when it was read.
    list_version: ListVersion | None = None
    # A file could not be written; a retry follows.
    is_partial: bool = False

    @property
    def daemons(self) -> Mapping[str, Daemon]:
        return self.injection.daemons


def make_plan(settings: Settings, hardware: Hardware) -> AgentPlan:
    """Blocks on the disk. Writes CDI specifications if the settings use them.

    Raises SlicingError or ProgramError. Everything that can fail for another reason than the files
    themselves is checked before the first file is written.
    """
    try:
        return _make_plan(settings, hardware)
    except OSError as error:  # files come and go while a driver is being replaced
        raise unreadable(error) from error


def check_directories(plan: AgentPlan) -> None:
    """Raises ProgramError if Allocate would fail for lack of a writable directory.

    Separate from `make_plan`: a directory that is lost later must not affect GPUs that do not need
    it.
    """
    if plan.settings.nested_file is not None and any(pool.nested for pool in plan.pools):
        check_nested_directory(Path(plan.settings.nested_directory))


def all_devices(inventory: Inventory, mig_strategy: MigStrategy) -> tuple[Device, ...]:
    """Every device that can be allocated on this node, in whichever pool it is."""
    mig = mig_strategy is not MigStrategy.NONE
    found = [
        mig_devices(gpu) if mig and gpu.mig_enabled else (whole(gpu),) for gpu in inventory.gpus
    ]
    return (*(device for devices in found for device in devices), *inventory.placeholders)


def _make_plan(settings: Settings, hardware: Hardware) -> AgentPlan:
    # First: a list that changes while it is read is read again.
    version = list_version(settings)
    inventory = own_gpus(hardware.inventory, settings)
    found = catalogue(inventory.gpus, settings.rules, inventory.placeholders)
    devices = all_devices(inventory, settings.rules.mig_strategy)
    injection = Injection(
        settings.containers,
        read_host(settings),
        LimitKey.for_driver(inventory.driver_version),
        _with_known_sockets(daemons_of(found.pools, settings)),
        devices,
        NestedLists(
            settings.nested_file, partial(write_nested_file, Path(settings.nested_directory))
        ),
    )
    binding = plan_binding(settings, found.pools)
    check_partitions(found.pools, binding, inventory.driver_version)
    awaited: tuple[Path, ...] = ()
    outdated: tuple[Notice, ...] = ()
    if settings.containers.uses_cdi:
        names = _refresh_cdi(settings, inventory, devices)
        injection = replace(injection, host=read_host(settings, names))
        awaited = names.awaited
        if names.outdated is not None:
            outdated = (Notice(Code.CDI_SPEC_OUTDATED, names.outdated),)
    return AgentPlan(
        settings,
        inventory,
        hardware.topology,
        found.pools,
        (*hardware_notices(inventory, found.pools, settings), *found.notices, *outdated),
        tuple(_cdi_faults(found.pools, injection)),
        injection,
        binding,
        awaited,
        version,
        bool(outdated),
    )


def _with_known_sockets(daemons: Mapping[str, Daemon]) -> dict[str, Daemon]:
    """A daemon that is only assumed to run may have no sockets yet that could be mounted."""
    has_program = shutil.which(PROGRAM) is not None
    return {
        name: replace(daemon, hides_privileged_socket=False)
        if daemon.check is MpsCheck.AUTO and not (has_program and Path(daemon.pipe).exists())
        else daemon
        for name, daemon in daemons.items()
    }


def _cdi_faults(pools: tuple[Pool, ...], injection: Injection) -> list[Fault]:
    """A device that no CDI specification describes is unhealthy."""
    return [
        fault_of(
            device,
            Code.CDI_DEVICE_MISSING,
            f"no CDI specification describes device {device.uuid}",
        )
        for pool in pools
        for device in (part.device for part in pool.parts)
        if not can_be_injected(device, injection.containers, injection.host)
    ]


def _refresh_cdi(settings: Settings, inventory: Inventory, devices: tuple[Device, ...]) -> CdiNames:
    # Imported here: an agent without CDI saves the memory.
    from gpuslice.cdi.errors import CdiError
    from gpuslice.cdi.node_specs import refresh_specs

    try:
        return refresh_specs(
            settings.cdi, settings.containers, inventory.gpus, devices, inventory.driver_version
        )
    except CdiError as error:
        raise ProgramError(error.code, str(error)) from error
