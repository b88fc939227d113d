"""The effective settings of an agent, after every source has been heard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuslice.config.describe import describe
from gpuslice.config.errors import ConfigError
from gpuslice.config.validation import check_absolute, check_resource, check_socket
from gpuslice.slicing.rules import (
    GPUSHARE_RESOURCE,
    MemoryRule,
    MigStrategy,
    Policy,
    Rules,
    SharingStrategy,
)

KUBELET_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
CDI_DIRECTORY = "/var/run/cdi"
NESTED_ENV = "/gpu.env"
NESTED_DIRECTORY = "/var/lib/gpuslice/nested"
FEATURES_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
MACHINE_TYPE_FILE = "/sys/class/dmi/id/product_name"

_NVIDIA = "nvidia.com/"
_MEMORY_OF_ALL_GPUS = Rules(memory=MemoryRule())


class MpsCheck(Enum):
    """What the agent makes of an MPS daemon that it cannot reach."""

    REQUIRE = "require"  # slices are unhealthy and containers wait until the daemon answers
    AUTO = "auto"  # as `require`, unless the pipe directory is not visible to the agent at all
    OFF = "off"


class DeviceList(Enum):
    """How a container is told its devices."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceId(Enum):
    """How devices are named to the container runtime."""

    UUID = "uuid"
    INDEX = "index"


class Discovery(Enum):
    AUTO = "auto"
    NVML = "nvml"
    TEGRA = "tegra"


class Nested(Enum):
    """A cluster within a cluster: its nodes are containers of the outer one."""

    OFF = "off"
    HOST = "host"  # containers here are such nodes
    GUEST = "guest"  # this node is such a container


@dataclass(frozen=True, slots=True)
class MemoryMps:
    """The MPS control daemon that limits containers to their memory units."""

    # Its pipe directory; None: memory is counted and not limited.
    pipe: str | None = None
    check: MpsCheck = MpsCheck.REQUIRE

    def __post_init__(self) -> None:
        if self.pipe is not None:
            check_absolute("mps-pipe", self.pipe, "it is mounted under the same name")
            check_socket("mps-pipe", self.pipe, Path(self.pipe) / "control")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """What containers receive beside their share."""

    device_list: frozenset[DeviceList] = frozenset({DeviceList.ENVVAR})
    device_id: DeviceId = DeviceId.UUID
    pass_device_specs: bool = False
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    # On the host; None means that MPS replicas cannot be served.
    mps_root: str | None = None
    # Roots of the driver and of its device nodes on the host.
    driver_root: str = "/"
    dev_root: str = "/"
    cdi_annotation_prefix: str = "cdi.k8s.io/"

    def __post_init__(self) -> None:
        if not self.device_list:
            names = ", ".join(member.value for member in DeviceList)
            raise ConfigError("device-list-strategy", "", f"choose at least one of {names}")
        if self.imex_channels not in ((), (0,)):
            channels = ",".join(map(str, self.imex_channels))
            raise ConfigError("imex-channel-ids", channels, "use 0, or none at all")
        if self.mps_root is not None:
            check_absolute("mps-root", self.mps_root, "it is a directory of the host")
        check_absolute("driver-root", self.driver_root, "it is a directory of the host")
        check_absolute("dev-root", self.dev_root, "it is a directory of the host")

    @property
    def uses_cdi(self) -> bool:
        return bool(self.device_list & {DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI})


@dataclass(frozen=True, slots=True)
class CdiSettings:
    hook_path: str = "/usr/bin/nvidia-ctk"
    # Where the driver root is visible to the agent.
    container_driver_root: str = "/driver-root"
    feature_flags: frozenset[str] = frozenset()
    disabled_hooks: frozenset[str] = frozenset()
    directory: str = CDI_DIRECTORY
    remove_on_exit: bool = False

    def __post_init__(self) -> None:
        check_absolute("nvidia-cdi-hook-path", self.hook_path, "it is a program of the host")
        check_absolute(
            "driver-root-ctr-path", self.container_driver_root, "it is a directory of the agent"
        )
        check_absolute("cdi-directory", self.directory, "it is a directory of the agent")


@dataclass(frozen=True, slots=True)
class HealthSettings:
    enabled: bool = True
    # XIDs that leave a GPU healthy although they are not an application's.
    ignored: frozenset[int] = frozenset()
    # XIDs that make it unhealthy although they would be ignored; None: every XID does.
    fatal: frozenset[int] | None = frozenset()
    # Every XID is ignored but the fatal ones.
    ignore_all: bool = False


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """How labels of the GPUs are published, as far as the file says it."""

    oneshot: bool = False
    no_timestamp: bool = False
    # None: once, and never again.
    sleep_seconds: float | None = 60.0
    # Empty: standard output.
    output_file: str = FEATURES_FILE
    machine_type_file: str = MACHINE_TYPE_FILE
    use_node_feature_api: bool = True


LABEL_DEFAULTS = LabelSettings()


@dataclass(frozen=True, slots=True)
class Settings:
    rules: Rules = _MEMORY_OF_ALL_GPUS
    memory_mps: MemoryMps = MemoryMps()
    containers: ContainerSettings = ContainerSettings()
    cdi: CdiSettings = CdiSettings()
    health: HealthSettings = HealthSettings()
    policy: Policy = Policy.DISTRIBUTED
    discovery: Discovery = Discovery.AUTO
    fail_on_init_error: bool = True
    # With a driver, but nothing to offer: wait for it whatever the line above says.
    wait_for_devices: bool = False
    # Empty: never register.
    kubelet_socket: str = KUBELET_SOCKET
    # A file that names the GPUs this node was given by the node around it.
    nested_env: str | None = None
    # The same list from the agent's own environment; it counts where that file is missing.
    nested_devices: str | None = None
    # Where files for nested nodes are kept on the host.
    nested_directory: str = NESTED_DIRECTORY
    labels: LabelSettings = LABEL_DEFAULTS

    def __post_init__(self) -> None:
        if self.nested_env is not None:
            check_absolute("nested-env", self.nested_env, "it is a file of the agent")
        check_absolute("nested-dir", self.nested_directory, "it is mounted from the host")
        self._check_mps_replicas()
        self._check_memory_resource()
        self._check_sockets()

    @property
    def nested(self) -> Nested:
        if self.nested_env is not None:
            return Nested.GUEST
        return Nested.HOST if self.rules.nested else Nested.OFF

    def describe(self) -> dict[str, object]:
        """The effective settings in the layout of the file."""
        return describe(self)

    def _check_mps_replicas(self) -> None:
        if not any(rule.strategy is SharingStrategy.MPS for rule in self.rules.replicas):
            return
        if self.containers.mps_root is None:
            raise ConfigError(
                "mps-root",
                "",
                "using MPS requires --mps-root (MPS_ROOT, flags.mpsRoot): the directory on the "
                "host where the MPS daemons have their pipes, as /run/nvidia/mps",
            )
        if self.rules.mig_strategy is MigStrategy.MIXED:
            raise ConfigError(
                "mig-strategy",
                "mixed",
                "sharing.mps cannot go with it; use sharing.timeSlicing, or another strategy",
            )

    def _check_memory_resource(self) -> None:
        memory = self.rules.memory
        if memory is None:
            return
        check_resource("resource", memory.resource)
        if memory.resource in set(_device_resources(self)):
            raise ConfigError(
                "resource",
                memory.resource,
                "devices are offered under this name; choose another one for memory",
            )

    def _check_sockets(self) -> None:
        if not self.kubelet_socket:
            return
        check_absolute("kubelet-socket", self.kubelet_socket, f"as {KUBELET_SOCKET}")
        directory = Path(self.kubelet_socket).parent
        resources = list(_device_resources(self))
        if self.rules.memory is not None:
            resources.append(self.rules.memory.resource)
        for resource in resources:
            check_socket("kubelet-socket", self.kubelet_socket, directory / socket_name(resource))


def socket_name(resource: str) -> str:
    """gpushare's and NVIDIA's names for their resources, so that tools find them."""
    if resource == GPUSHARE_RESOURCE:
        return "aliyungpushare.sock"
    if resource.startswith(_NVIDIA):
        return f"nvidia-{resource.removeprefix(_NVIDIA)}.sock"
    return f"gpuslice-{resource.replace('/', '_')}.sock"


def _device_resources(settings: Settings) -> Iterator[str]:
    """Names under which devices may be offered, as far as they are known without the hardware."""
    rules = settings.rules
    yield from (rule.name for rule in (*rules.gpus, *(rules.mig or ())))
    yield from (rule.resource for rule in rules.replicas)
