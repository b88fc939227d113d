"""The CDI specifications of the node: ours, kept current, or the host's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.agent.errors import AgentError
from gpuslice.agent.host_cdi import HOST_DIRECTORIES, host_names
from gpuslice.config.settings import CdiSettings, ContainerSettings, DeviceId
from gpuslice.files.atomic import replace_file
from gpuslice.files.rooted_tree import Tree
from gpuslice.gpus.device_nodes import (
    CONTROL_NODES,
    CharDevice,
    DrmNodes,
    char_devices,
    drm_nodes,
)
from gpuslice.gpus.driver_files import find_driver_files, seen_dev_root, seen_driver_root
from gpuslice.inject.cdi import (
    GPU,
    IMEX,
    MODES,
    GpuNodes,
    HookProgram,
    HostRoots,
    Mode,
    Spec,
    Style,
    device_name,
    document,
    file_name,
    gpu_spec,
    imex_spec,
    mode_spec,
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


class CdiError(AgentError):
    """Containers cannot be given devices by CDI."""


@dataclass(frozen=True)
class CdiNames:
    """What answers may refer to, as in `inject.visible.Host`."""

    cdi_names: Mapping[str, str] = field(default_factory=dict)
    cdi_extras: tuple[str, ...] = ()
    # Device nodes, as the agent sees them, without which a device could not be described.
    awaited: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class _Roots:
    """As the agent sees them."""

    driver: Tree
    dev: Tree
    # Its own, with the kernel's /sys.
    own: Tree


class CdiFiles:
    """All methods block on the disk."""

    def __init__(
        self,
        settings: CdiSettings,
        *,
        host_directories: Sequence[Path] = HOST_DIRECTORIES,
        own_root: Path = Path("/"),
    ) -> None:
        self._settings = settings
        self._directory = Path(settings.directory)
        self._host_directories = (*host_directories, self._directory)
        self._own_root = own_root

    def refresh(
        self,
        gpus: Sequence[Gpu],
        devices: Sequence[Device],
        driver_version: str,
        containers: ContainerSettings,
    ) -> CdiNames:
        """Brings the files up to date with all devices of these GPUs that may be given out.

        Nothing is written if CDI is not in use. Raises CdiError if writing fails; the file is then
        as it was before.
        """
        if not containers.uses_cdi:
            return CdiNames()
        driver = seen_driver_root(self._settings.container_driver_root, containers.driver_root)
        roots = _Roots(driver, seen_dev_root(driver), Tree(self._own_root))
        style = _style(self._settings, containers)
        names: Mapping[str, str] | None = host_names(
            self._host_directories, [device.uuid for device in devices], driver_version
        )
        buses = {gpu.uuid: gpu.pci_bus_id for gpu in gpus}
        nodes = {device: _nodes(device, buses.get(device.gpu, ""), roots) for device in devices}
        awaited: tuple[Path, ...] = ()
        if names is None:
            spec, names = self._gpu_spec(nodes, driver_version, containers, roots)
            self._write(spec, style)
            awaited = _awaited(nodes, roots)
        elif self._path(GPU).exists():
            self._keep_current(nodes, driver_version, containers, roots)
        return CdiNames(names, self._extras(containers, roots, style), awaited)

    def remove(self) -> None:
        """For the end of the agent, where the settings ask for it."""
        for cls in (GPU, IMEX, *MODES):
            self._unlink(cls)

    def _keep_current(
        self,
        found: Mapping[Device, GpuNodes | None],
        driver_version: str,
        containers: ContainerSettings,
        roots: _Roots,
    ) -> None:
        """Containers that restart still name what they were first started with; no others do."""
        try:
            spec, _ = self._gpu_spec(found, driver_version, containers, roots)
            self._write(spec, _style(self._settings, containers))
        except CdiError as error:
            log.warning("a CDI specification of before is left as it is", reason=error)

    def _gpu_spec(
        self,
        found: Mapping[Device, GpuNodes | None],
        driver_version: str,
        containers: ContainerSettings,
        roots: _Roots,
    ) -> tuple[Spec, dict[str, str]]:
        """The specification, and the names by which devices are found in it."""
        files = find_driver_files(roots.driver, driver_version, self._settings.feature_flags)
        if not files.libraries:
            raise CdiError(
                f"driver {driver_version} has no libraries under {roots.driver.root}: mount the "
                f"host's driver root ({containers.driver_root}) into the agent and name the place "
                "by driver-root-ctr-path, or use the device list strategy envvar"
            )
        by_index = containers.device_id is DeviceId.INDEX
        names: dict[str, str] = {}
        described: dict[str, GpuNodes] = {}
        for device, nodes in found.items():
            if nodes is None:
                log.warning(
                    "a device is left out of CDI, as device nodes of it are missing",
                    uuid=device.uuid,
                    expected=", ".join(device.nodes) or "unknown",
                    root=str(roots.dev.root),
                )
                continue
            names[device.uuid] = device_name(device.index if by_index else device.uuid)
            described[names[device.uuid]] = nodes
        spec = gpu_spec(described, char_devices(roots.dev, CONTROL_NODES), files)
        return spec, {uuid: spec.qualified(name) for uuid, name in names.items()}

    def _extras(
        self, containers: ContainerSettings, roots: _Roots, style: Style
    ) -> tuple[str, ...]:
        """Files are also kept current for containers of before, without being named again."""
        imex = imex_spec(
            {
                channel: node
                for channel in containers.imex_channels
                for node in _imex_node(channel, roots)
            }
        )
        specs = [(imex, bool(containers.imex_channels))]
        wanted = {"gdrcopy": containers.gdrcopy, "gds": containers.gds, "mofed": containers.mofed}
        specs += [(_mode_spec(mode, roots), wanted[mode]) for mode in MODES]
        names: list[str] = []
        for spec, enabled in specs:
            if enabled or self._path(spec.cls).exists():
                self._write(spec, style)
            if enabled:
                names += map(spec.qualified, spec.devices)
        return tuple(names)

    def _write(self, spec: Spec, style: Style) -> None:
        if not spec.devices:
            # A specification without devices is an error to the runtime, which then reports it
            # for every container.
            self._unlink(spec.cls)
            return
        content = json.dumps(document(spec, style), indent=2).encode() + b"\n"
        path = self._path(spec.cls)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            written = replace_file(path, content)
        except OSError as error:
            raise CdiError(
                f"{path} cannot be written ({error.strerror}): mount the host's "
                f"{self._directory} into the agent, writable"
            ) from error
        if written:
            log.info("wrote a CDI specification", file=str(path), devices=len(spec.devices))

    def _unlink(self, cls: str) -> None:
        try:
            self._path(cls).unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(
                f"{self._path(cls)} cannot be removed ({error.strerror}): remove it by hand"
            ) from error

    def _path(self, cls: str) -> Path:
        return self._directory / file_name(cls)


def _style(settings: CdiSettings, containers: ContainerSettings) -> Style:
    return Style(
        HostRoots(containers.driver_root, containers.dev_root),
        HookProgram(settings.hook_path, settings.disabled_hooks),
        additional_gids="no-additional-gids-for-device-nodes" not in settings.feature_flags,
    )


def _nodes(device: Device, pci_bus_id: str, roots: _Roots) -> GpuNodes | None:
    """None if a node is missing: the container would get a device that does not work."""
    nodes = char_devices(roots.dev, device.nodes)
    if not nodes or len(nodes) < len(set(device.nodes)):
        return None
    # Of MIG devices only those with graphics have a display part.
    drawing = device.mig is None or "gfx" in device.mig.profile
    return GpuNodes(nodes, drm_nodes(roots.dev, roots.own, pci_bus_id) if drawing else DrmNodes())


def _imex_node(channel: int, roots: _Roots) -> tuple[CharDevice, ...]:
    """None or one. The agent may have been given the channel without the host's /dev."""
    path = f"{IMEX_NODES}{channel}"
    return char_devices(roots.dev, [path]) or char_devices(roots.own, [path])


def _awaited(found: Mapping[Device, GpuNodes | None], roots: _Roots) -> tuple[Path, ...]:
    incomplete = [device for device, nodes in found.items() if nodes is None]
    paths = {node: None for device in incomplete for node in device.nodes}
    missing = (path for path in paths if not char_devices(roots.dev, [path]))
    return tuple(roots.dev.root / path.lstrip("/") for path in missing)


def _mode_spec(mode: Mode, roots: _Roots) -> Spec:
    files: tuple[str, ...] = ()
    if mode == "gds":
        wanted = ("/run/udev", "/etc/cufile.json")
        files = tuple(path for path in wanted if roots.driver.resolve(path) is not None)
    return mode_spec(mode, char_devices(roots.dev, _MODE_NODES[mode]), files)
