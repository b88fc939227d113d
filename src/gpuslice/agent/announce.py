"""What an operator should know about settings and offer, once per start and reload."""

from __future__ import annotations

from gpuslice.agent.assembly import Assembled
from gpuslice.agent.devices import DevicePlan
from gpuslice.agent.memory import MemoryPlan
from gpuslice.config.load import Loaded
from gpuslice.gpus.inventory import Inventory
from gpuslice.mps.driver_support import most_clients
from gpuslice.slicing.catalogue import Catalogue
from gpuslice.slicing.rules import MigStrategy
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


def announce_settings(event: str, loaded: Loaded) -> None:
    log.info(event, **loaded.settings.describe())
    for warning in loaded.warnings:
        log.warning(warning)


def announce(assembled: Assembled) -> None:
    found, inventory = assembled.found, assembled.node.inventory
    for left_out in inventory.left_out:
        if left_out.mig_index is None:
            log.warning("left out a GPU", index=left_out.index, reason=left_out.reason)
        elif assembled.settings.rules.mig_strategy is not MigStrategy.NONE:
            index = f"{left_out.index}:{left_out.mig_index}"
            log.warning("left out a MIG device", index=index, reason=left_out.reason)
    for note in (*inventory.notes, *found.notes):
        log.warning(note)
    for plan in assembled.plans.values():
        if isinstance(plan, MemoryPlan):
            _announce_memory(plan, found, inventory)
        elif isinstance(plan, DevicePlan):
            _announce_devices(plan)


def _announce_devices(plan: DevicePlan) -> None:
    for offered in plan.offer.devices:
        device = offered.device
        log.info(
            "offering",
            resource=plan.name,
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            devices=max(1, offered.replicas),
        )


def _announce_memory(plan: MemoryPlan, found: Catalogue, inventory: Inventory) -> None:
    for sliced in plan.offer.gpus:
        gpu = sliced.gpu
        log.info(
            "offering",
            resource=plan.name,
            gpu=gpu.minor,
            uuid=gpu.uuid,
            model=gpu.name,
            units=sliced.units,
        )
    offered = {sliced.gpu.uuid for sliced in plan.offer.gpus}
    for gpu in found.memory:
        if gpu.uuid not in offered and gpu not in plan.unlimitable:
            reason = f"it is smaller than one unit of {plan.settings.unit} and the reserve"
            log.warning("left out a GPU", index=gpu.index, reason=reason)
    if plan.settings.mps_pipe is None:
        log.warning("MPS is off: memory is counted, but no container is held to its share")
    else:
        _warn_about_mps(plan, inventory)


def _warn_about_mps(plan: MemoryPlan, inventory: Inventory) -> None:
    for gpu in plan.unlimitable:
        major, minor = gpu.compute_capability
        reason = f"MPS cannot limit its clients: compute capability {major}.{minor} is before Volta"
        log.warning("left out a GPU", index=gpu.index, reason=reason)
    sliced_gpus = {sliced.gpu.uuid for sliced in plan.offer.gpus}
    for gpu in inventory.not_exclusive:
        if gpu.uuid in sliced_gpus:
            log.warning(
                "a process that misses MPS would run without limits",
                gpu=gpu.minor,
                remedy=f"nvidia-smi -i {gpu.uuid} -c EXCLUSIVE_PROCESS",
            )
    clients = most_clients(inventory.driver_version)
    for sliced in plan.offer.gpus:
        if sliced.units > clients:
            log.warning(
                "a GPU has more units than MPS serves clients: do not fill it with one-unit pods",
                gpu=sliced.gpu.minor,
                units=sliced.units,
                clients=clients,
            )
