"""What an operator should know about the hardware and the way it is shared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuslice.codes import Code
from gpuslice.config.load import Loaded
from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.mps.driver_support import has_multi_user_servers, most_clients
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MigStrategy, SharingStrategy


def hardware_notices(
    inventory: Inventory, pools: Sequence[Pool], settings: Settings
) -> Iterator[Notice]:
    yield from skipped_gpus(inventory, settings.rules.mig_strategy)
    yield from inventory.notices
    for pool in pools:
        if pool.sharing is SharingStrategy.MEMORY:
            yield from _memory(pool, inventory)
    yield from user_notice(pools, inventory.driver_version)


def skipped_gpus(inventory: Inventory, mig_strategy: MigStrategy) -> Iterator[Notice]:
    for one in inventory.skipped:
        if one.mig_index is None:
            yield Notice(one.code, f"skipping GPU {one.index}: {one.reason}")
        elif mig_strategy is not MigStrategy.NONE:
            place = f"{one.index}:{one.mig_index}"
            message = f"skipping MIG device {place}: {one.reason}"
            yield Notice(Code.MIG_DEVICE_SKIPPED, message)


def _memory(pool: Pool, inventory: Inventory) -> Iterator[Notice]:
    limited = [part for part in pool.parts if part.daemon is not None]
    if not limited:
        yield Notice(
            Code.NOT_LIMITED,
            "MPS is off: memory is counted, and MPS does not limit containers to it",
        )
        return
    open_gpus = {gpu.uuid for gpu in inventory.not_exclusive}
    clients = most_clients(inventory.driver_version)
    for part in limited:
        device = part.device
        # The program that runs managed daemons sets the mode before it starts them.
        if device.uuid in open_gpus and not pool.daemon_per_gpu:
            yield Notice(
                Code.NOT_EXCLUSIVE,
                f"GPU {device.index} ({device.uuid}) is not in EXCLUSIVE_PROCESS mode: a process "
                f"that does not use MPS is not limited. Run nvidia-smi -i {device.uuid} "
                "-c EXCLUSIVE_PROCESS",
            )
        if part.count > clients:
            yield Notice(
                Code.MORE_UNITS_THAN_CLIENTS,
                f"GPU {device.index} ({device.uuid}) has {part.count} units, and MPS serves "
                f"{clients} clients per GPU: do not fill it with pods of one unit",
            )


def user_notice(pools: Iterable[Pool], driver_version: str) -> Iterator[Notice]:
    """Containers of different users wait for each other if the driver has no common server."""
    limited = [pool.resource for pool in pools if pool.daemons]
    if limited and not has_multi_user_servers(driver_version):
        yield Notice(
            Code.MPS_ONE_USER_AT_A_TIME,
            f"MPS of this driver serves one user at a time: containers of {', '.join(limited)} "
            "wait while those of another user run: run them with the same runAsUser, or use "
            "driver 555 or newer",
        )


def config_notices(loaded: Loaded) -> Iterator[Notice]:
    """Settings that are valid and probably not intended."""
    return (Notice(Code.CONFIGURATION_WARNING, warning) for warning in loaded.warnings)
