"""Keeps the CDI specifications of a node current: our own, or those that the host has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.cdi.document import HookProgram, Spec, Style, device_name
from gpuslice.cdi.errors import CdiError
from gpuslice.cdi.host_specs import HOST_DIRECTORIES, host_names
from gpuslice.cdi.specs import (
    GPU,
    MODES,
    GpuNodes,
    HostRoots,
    Mode,
    gpu_spec,
    imex_spec,
    mode_spec,
)
from gpuslice.cdi.store import CdiStore
from gpuslice.codes import Code
from gpuslice.config.settings import CdiSettings, ContainerSettings, DeviceId
from gpuslice.files.rooted_tree import Tree
from gpuslice.gpus.device_nodes import CONTROL_NODES, CharDevice, DrmNodes, char_devices, drm_nodes
from gpuslice.gpus.driver_files import (
    DriverFiles,
    find_driver_files,
    seen_dev_root,
    seen_driver_root,
)
from gpuslice.inject.visible import IMEX_NODES
from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import Gpu
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_MODE_NODES: Mapping[Mode, tuple[str, ...]] = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs*",),
    "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
}
_GDS_FILES = ("/run/udev", "/etc/cufile.json")


@dataclass(frozen=True)
class CdiNames:
    """What Allocate's answers may refer to; see `inject.visible.Host`."""

    cdi_names: Mapping[str, str] = field(default_factory=dict)
    cdi_extras: tuple[str, ...] = ()
    # Missing device nodes, as the agent sees them, that keep a device from being described.
    awaited: tuple[Path, ...] = ()
    # Why the specification is not up to date. Devices that it does not describe are not named.
    outdated: str | None = None


@dataclass(frozen=True, slots=True)
class _Trees:
    """As the agent sees them."""

    driver: Tree
    dev: Tree
    # Its own root, with the kernel's /sys.
    own: Tree


def refresh_specs(
    settings: CdiSettings,
    containers: ContainerSettings,
    gpus: Sequence[Gpu],
    devices: Sequence[Device],
    driver_version: str,
    *,
    host_directories: Sequence[Path] = HOST_DIRECTORIES,
    own_root: Path = Path("/"),
) -> CdiNames:
    """Brings our specifications up to date with all devices that may be allocated. Blocks.

    Raises CdiError if a file cannot be written, which then remains as it is, unless it describes
    some of the devices as it should.
    """
    driver = seen_driver_root(settings.container_driver_root, containers.driver_root)
    trees = _Trees(driver, seen_dev_root(driver), Tree(own_root))
    writer = _SpecWriter(settings, containers, driver_version, trees)
    directories = (*host_directories, Path(settings.directory))
    names: Mapping[str, str] | None = host_names(
        directories, [device.uuid for device in devices], driver_version
    )
    buses = {gpu.uuid: gpu.pci_bus_id for gpu in gpus}
    nodes = {device: _nodes(device, buses.get(device.gpu, ""), trees) for device in devices}
    awaited: tuple[Path, ...] = ()
    if names is None:
        names = writer.write_gpus(nodes)
        awaited = _awaited(nodes, trees)
    else:
        writer.update_unused(nodes)
    return CdiNames(names, writer.write_extras(), awaited, writer.outdated)


class _SpecWriter:
    def __init__(
        self,
        settings: CdiSettings,
        containers: ContainerSettings,
        driver_version: str,
        trees: _Trees,
    ) -> None:
        self.outdated: str | None = None
        self._feature_flags = settings.feature_flags
        self._containers = containers
        self._driver_version = driver_version
        self._trees = trees
        self._roots = HostRoots(containers.driver_root, containers.dev_root)
        self._store = CdiStore(Path(settings.directory))
        self._style = Style(
            HookProgram(settings.hook_path, settings.disabled_hooks),
            additional_gids="no-additional-gids-for-device-nodes" not in settings.feature_flags,
        )

    def write_gpus(self, found: Mapping[Device, GpuNodes | None]) -> dict[str, str]:
        """Returns the qualified names of the devices by UUID."""
        names = {
            device.uuid: self._name(device) for device, nodes in found.items() if nodes is not None
        }
        for device, nodes in found.items():
            if nodes is None:
                log.warning(
                    Code.CDI_DEVICE_MISSING,
                    "skipping device in CDI specification: device nodes are missing",
                    uuid=device.uuid,
                    expected=", ".join(device.nodes) or "unknown",
                    root=str(self._trees.dev.root),
                )
        spec = gpu_spec(
            {names[d.uuid]: nodes for d, nodes in found.items() if nodes is not None},
            char_devices(self._trees.dev, CONTROL_NODES),
            self._driver_files(),
            self._roots,
        )
        described = self._put_or_keep(spec)
        return {uuid: spec.qualified(name) for uuid, name in names.items() if name in described}

    def _put_or_keep(self, spec: Spec) -> Collection[str]:
        """The devices that the file describes: a full disk does not affect those it did before."""
        try:
            self._store.put(spec, self._style)
        except CdiError as error:
            described = self._store.described(spec, self._style)
            if not described:
                raise
            self.outdated = str(error)
            return described
        return spec.devices.keys()

    def update_unused(self, found: Mapping[Device, GpuNodes | None]) -> None:
        """Containers that restart still refer to the specification of their first start."""
        if GPU not in self._store:
            return
        try:
            self.write_gpus(found)
        except CdiError as error:
            log.warning(
                Code.CDI_SPEC_OUTDATED, "cannot update an earlier CDI specification", reason=error
            )

    def write_extras(self) -> tuple[str, ...]:
        """Returns the names that every container gets.

        A file of a mode that is now disabled is kept current for containers that restart.
        """
        containers = self._containers
        channels = {c: node for c in containers.imex_channels for node in self._imex_node(c)}
        specs = [(imex_spec(channels, self._roots), bool(containers.imex_channels))]
        enabled = {"gdrcopy": containers.gdrcopy, "gds": containers.gds, "mofed": containers.mofed}
        specs += [(self._mode_spec(mode), enabled[mode]) for mode in MODES]
        names: list[str] = []
        for spec, wanted in specs:
            if wanted or spec.cls in self._store:
                self._store.put(spec, self._style)
            if wanted:
                names += map(spec.qualified, spec.devices)
        return tuple(names)

    def _name(self, device: Device) -> str:
        by_index = self._containers.device_id is DeviceId.INDEX
        return device_name(device.index if by_index else device.uuid)

    def _driver_files(self) -> DriverFiles:
        driver = self._trees.driver
        files = find_driver_files(driver, self._driver_version, self._feature_flags)
        if not files.libraries:
            raise CdiError(
                f"driver {self._driver_version} has no libraries under {driver.root}: mount the "
                f"host's driver root ({self._containers.driver_root}) into this container and set "
                "driver-root-ctr-path to the mount point, or use the device list strategy envvar"
            )
        return files

    def _imex_node(self, channel: int) -> tuple[CharDevice, ...]:
        """None or one. The agent may have the channel without having the host's /dev."""
        path = f"{IMEX_NODES}{channel}"
        return char_devices(self._trees.dev, [path]) or char_devices(self._trees.own, [path])

    def _mode_spec(self, mode: Mode) -> Spec:
        driver = self._trees.driver
        files = [path for path in _GDS_FILES if mode == "gds" and driver.resolve(path) is not None]
        return mode_spec(mode, char_devices(self._trees.dev, _MODE_NODES[mode]), files, self._roots)


def _nodes(device: Device, pci_bus_id: str, trees: _Trees) -> GpuNodes | None:
    """None if a node is missing: the container would get a device that does not work."""
    nodes = char_devices(trees.dev, device.nodes)
    if not nodes or len(nodes) < len(set(device.nodes)):
        return None
    # Only MIG devices with graphics have a display part.
    drawing = device.mig is None or "gfx" in device.mig.profile
    return GpuNodes(nodes, drm_nodes(trees.dev, trees.own, pci_bus_id) if drawing else DrmNodes())


def _awaited(found: Mapping[Device, GpuNodes | None], trees: _Trees) -> tuple[Path, ...]:
    incomplete = [device for device, nodes in found.items() if nodes is None]
    paths = {node: None for device in incomplete for node in device.nodes}
    missing = (path for path in paths if not char_devices(trees.dev, [path]))
    return tuple(trees.dev.root / path.lstrip("/") for path in missing)
