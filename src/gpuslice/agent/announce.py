"""What an operator should know about the offer, once per start and reload."""

from __future__ import annotations

from gpuslice.agent.memory import Plan
from gpuslice.gpus.inventory import Inventory
from gpuslice.mps.capability import most_clients
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


def announce(plan: Plan, inventory: Inventory) -> None:
    for sliced in plan.offer.gpus:
        gpu = sliced.gpu
        log.info("offering", gpu=gpu.minor, uuid=gpu.uuid, model=gpu.name, units=sliced.units)
    for left_out in inventory.left_out:
        log.warning("left out a GPU", index=left_out.index, reason=left_out.reason)
    offered = {sliced.gpu.uuid for sliced in plan.offer.gpus}
    for gpu in inventory.gpus:
        if gpu.uuid not in offered and gpu not in plan.unlimitable:
            reason = f"it is smaller than one unit of {plan.settings.memory_unit} and the reserve"
            log.warning("left out a GPU", index=gpu.index, reason=reason)
    if plan.settings.mps_pipe is None:
        log.warning("MPS is off: memory is counted, but no container is held to its share")
    else:
        _warn_about_mps(plan, inventory)


def _warn_about_mps(plan: Plan, inventory: Inventory) -> None:
    for gpu in plan.unlimitable:
        major, minor = gpu.compute_capability
        reason = f"MPS cannot limit its clients: compute capability {major}.{minor} is before Volta"
        log.warning("left out a GPU", index=gpu.index, reason=reason)
    for gpu in inventory.not_exclusive:
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
