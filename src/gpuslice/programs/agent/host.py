"""What the host has that containers may get in addition to GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.codes import Code
from gpuslice.config.settings import Settings
from gpuslice.files.rooted_tree import Tree
from gpuslice.gpus.device_nodes import CONTROL_NODES, char_devices
from gpuslice.gpus.driver_files import seen_dev_root, seen_driver_root
from gpuslice.inject.visible import IMEX_NODES, Host
from gpuslice.node.errors import ProgramError
from gpuslice.telemetry.logs import Logger

if TYPE_CHECKING:
    from gpuslice.cdi.node_specs import CdiNames

log = Logger(__name__)


def read_host(settings: Settings, names: CdiNames | None = None, *, root: Path = Path("/")) -> Host:
    """`root` is the agent's own root; device nodes may be there or in the driver root."""
    containers = settings.containers
    driver = seen_driver_root(settings.cdi.container_driver_root, containers.driver_root)
    places = [seen_dev_root(driver), Tree(root)]
    channels = []
    for channel in containers.imex_channels:
        if _exists(places, f"{IMEX_NODES}{channel}"):
            channels.append(channel)
        elif containers.imex_required:
            raise ProgramError(
                Code.IMEX_CHANNEL_MISSING,
                f"imex.channelIDs: channel {channel} does not exist: create {IMEX_NODES}{channel} "
                "(nvidia-modprobe does), or set imex.required to false",
            )
        else:
            log.warning(
                Code.IMEX_CHANNEL_MISSING,
                "skipping IMEX channel: it does not exist",
                channel=channel,
            )
    return Host(
        control_nodes=tuple(path for path in CONTROL_NODES if _exists(places, path)),
        imex_channels=tuple(channels),
        cdi_names=names.cdi_names if names else {},
        cdi_extras=names.cdi_extras if names else (),
    )


def _exists(places: list[Tree], path: str) -> bool:
    return any(char_devices(place, [path]) for place in places)
