"""The effective settings of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuslice.config.describe_settings import describe_settings
from gpuslice.config.errors import ConfigError
from gpuslice.config.memory_limit_settings import MEMORY_LIMIT_DEFAULTS, MemoryLimitSettings
from gpuslice.config.nested_rules import check_nested_rules
from gpuslice.config.validation import (
    check_absolute_path,
    check_file_path,
    check_imex_channels,
    check_path,
    check_pipe_directory,
    check_socket_path,
)
from gpuslice.config.watchdog_settings import WATCHDOG_DEFAULTS, WatchdogSettings
from gpuslice.slicing.rules import (
    GPUSHARE_RESOURCE,
    MemoryRule,
    MigStrategy,
    Policy,
    Rules,
    SharingStrategy,
)
from gpuslice.slicing.thread_annotations import ThreadAnnotations
from gpuslice.slicing.threads import ThreadStrategy

KUBELET_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
CDI_DIRECTORY = "/var/run/cdi"
# In the container of a nested node: the list of its GPUs, as the container writes it.
NESTED_ENV = "/gpu.env"
# The same list, as the host node mounts it. Nothing else uses this path: a second mount at the same
# path would hide the list, or keep the container from starting. It is at the root, because the
# container may mount something else at /run or /etc.
NESTED_MOUNT = "/gpuslice/gpu.env"
# Shared memory of the host.
HOST_SHM = "/dev/shm"  # noqa: S108
NESTED_DIRECTORY = "/var/lib/gpuslice/nested"
FEATURES_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
MACHINE_TYPE_FILE = "/sys/class/dmi/id/product_name"

_NVIDIA = "nvidia.com/"
_MEMORY_OF_ALL_GPUS = Rules(memory=MemoryRule())


class MpsCheck(Enum):
    """What the agent does while it cannot reach the MPS daemon."""

    REQUIRE = "require"  # slices are unhealthy and containers do not start
    AUTO = "auto"  # like `require`, but only if the agent can see the pipe directory
    OFF = "off"  # slices stay healthy


class MpsMode(Enum):
    """Who runs the MPS control daemons that limit containers to their memory units."""

    MANAGED = "managed"  # `gpuslice mps`: one daemon for each GPU
    EXTERNAL = "external"  # somebody else: one daemon for the node
    NONE = "none"  # nobody: memory is counted and not limited


class MpsNamespaces(Enum):
    """Whether each container has a namespace of MPS, whose limits its programs cannot exceed."""

    AUTO = "auto"  # if driver and settings allow it, and it works as documented
    REQUIRE = "require"  # otherwise no container starts
    OFF = "off"


class DeviceList(Enum):
    """How the list of devices is passed to a container."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceId(Enum):
    """How devices are identified to the container runtime."""

    UUID = "uuid"
    INDEX = "index"


class Bind(Enum):
    """How containers get their limits."""

    AUTO = "auto"  # as `cdi`, and in Allocate's answer for a runtime that ignores CDI
    CDI = "cdi"  # by a CDI specification per container, written at each start; pods cannot override
    ENV = "env"  # in Allocate's answer, which the variables of a pod override


class Discovery(Enum):
    """How GPUs are found."""

    AUTO = "auto"
    NVML = "nvml"
    TEGRA = "tegra"


class Nested(Enum):
    """A cluster within a cluster: the nodes of the inner one are containers of the outer one."""

    OFF = "off"
    HOST = "host"  # containers of this node are nodes of an inner cluster
    GUEST = "guest"  # this node is a container of an outer cluster


@dataclass(frozen=True, slots=True)
class MemoryMps:
    """The MPS control daemons that limit containers to their memory units."""

    # Only in the mode `external`: the pipe directory, and what the agent does without an answer.
    pipe: str | None = None
    check: MpsCheck = MpsCheck.REQUIRE
    # Only in the mode `external`: the directory on the host that the daemon has as /dev/shm, for
    # containers; None: they have their own.
    shm: str | None = None
    is_managed: bool = False
    # Only in the mode `managed`.
    namespaces: MpsNamespaces = MpsNamespaces.AUTO

    @property
    def mode(self) -> MpsMode:
        if self.is_managed:
            return MpsMode.MANAGED
        return MpsMode.NONE if self.pipe is None else MpsMode.EXTERNAL

    def __post_init__(self) -> None:
        if self.shm is not None:
            check_absolute_path("mps-shm", self.shm, "it is a directory on the host, or host")
        if self.pipe is not None:
            check_absolute_path("mps-pipe", self.pipe, "containers mount it at the same path")
            check_pipe_directory("mps-pipe", self.pipe)


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """What containers get in addition to their share of a GPU."""

    device_list: frozenset[DeviceList] = frozenset({DeviceList.ENVVAR})
    device_id: DeviceId = DeviceId.UUID
    pass_device_specs: bool = False
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    # On the host. Replicas with MPS require it, and memory units with managed MPS.
    mps_root: str | None = None
    # Root in a container is an ordinary client of MPS: it cannot set limits or end the daemon.
    mps_hide_privileged_socket: bool = True
    mps_pipe_read_only: bool = False
    # Roots of the driver and of its device nodes on the host.
    driver_root: str = "/"
    dev_root: str = "/"
    cdi_annotation_prefix: str = "cdi.k8s.io/"

    def __post_init__(self) -> None:
        if not self.device_list:
            names = ", ".join(member.value for member in DeviceList)
            raise ConfigError("device-list-strategy", "", f"choose at least one of {names}")
        check_imex_channels("imex-channel-ids", tuple(map(str, self.imex_channels)))
        if self.mps_root is not None:
            check_absolute_path("mps-root", self.mps_root, "it is a directory on the host")
        check_absolute_path("driver-root", self.driver_root, "it is a directory on the host")
        check_absolute_path("dev-root", self.dev_root, "it is a directory on the host")

    @property
    def uses_cdi(self) -> bool:
        return bool(self.device_list & {DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI})


@dataclass(frozen=True, slots=True)
class CdiSettings:
    hook_path: str = "/usr/bin/nvidia-ctk"
    # The driver root as the agent sees it.
    container_driver_root: str = "/driver-root"
    feature_flags: frozenset[str] = frozenset()
    disabled_hooks: frozenset[str] = frozenset()
    directory: str = CDI_DIRECTORY
    remove_on_exit: bool = False

    def __post_init__(self) -> None:
        check_absolute_path("nvidia-cdi-hook-path", self.hook_path, "it is a program on the host")
        check_absolute_path(
            "driver-root-ctr-path", self.container_driver_root, "it is a directory of the agent"
        )
        check_absolute_path("cdi-directory", self.directory, "it is a directory of the agent")


@dataclass(frozen=True, slots=True)
class HealthSettings:
    enabled: bool = True
    # XIDs to ignore in addition to those that applications cause.
    ignored: frozenset[int] = frozenset()
    # XIDs that are fatal even if they are ignored otherwise. None: every XID.
    fatal: frozenset[int] | None = frozenset()
    # Ignore every XID that is not in `fatal`.
    ignore_all: bool = False


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """How labels are published."""

    oneshot: bool = False
    no_timestamp: bool = False
    # None: publish once and keep the labels as they are.
    sleep_seconds: float | None = 60.0
    # Empty: standard output.
    output_file: str = FEATURES_FILE
    machine_type_file: str = MACHINE_TYPE_FILE
    use_node_feature_api: bool = True

    def __post_init__(self) -> None:
        check_path("flags.gfd.outputFile", self.output_file)
        check_path("flags.gfd.machineTypeFile", self.machine_type_file)


LABEL_DEFAULTS = LabelSettings()


@dataclass(frozen=True, slots=True)
class Settings:
    rules: Rules = _MEMORY_OF_ALL_GPUS
    memory_mps: MemoryMps = MemoryMps()
    containers: ContainerSettings = ContainerSettings()
    cdi: CdiSettings = CdiSettings()
    bind: Bind = Bind.AUTO
    thread_annotations: ThreadAnnotations = ThreadAnnotations.OFF
    health: HealthSettings = HealthSettings()
    policy: Policy = Policy.DISTRIBUTED
    discovery: Discovery = Discovery.AUTO
    fail_on_init_error: bool = True
    # Wait for GPUs if there is a driver but nothing to advertise, even with fail_on_init_error.
    wait_for_devices: bool = False
    # Empty: never register.
    kubelet_socket: str = KUBELET_SOCKET
    # Only for a nested node: the file with the list of its GPUs.
    nested_env: str | None = None
    # The same list from the agent's environment, used if there is no such file.
    nested_devices: str | None = None
    # The directory on the host with the lists for nested nodes.
    nested_directory: str = NESTED_DIRECTORY
    # Where containers of nested nodes have the list; None: as a variable only.
    nested_file: str | None = NESTED_MOUNT
    labels: LabelSettings = LABEL_DEFAULTS
    watchdog: WatchdogSettings = WATCHDOG_DEFAULTS
    memory_limits: MemoryLimitSettings = MEMORY_LIMIT_DEFAULTS

    def __post_init__(self) -> None:
        if self.nested_env is not None:
            check_absolute_path("nested-env", self.nested_env, "it is a file of the agent")
        check_absolute_path("nested-dir", self.nested_directory, "it is mounted from the host")
        if self.nested_file is not None:
            check_file_path("nested-file", self.nested_file)
        self._check_mps_root()
        self._check_mps_namespaces()
        self._check_mps_replicas()
        check_nested_rules(self.rules)
        self._check_memory_resource()
        self._check_sockets()

    @property
    def nested(self) -> Nested:
        if self.nested_env is not None:
            return Nested.GUEST
        return Nested.HOST if self.rules.nested else Nested.OFF

    def describe(self) -> dict[str, object]:
        """The settings in the layout of the configuration file."""
        return describe_settings(self)

    @property
    def has_mps_replicas(self) -> bool:
        return any(rule.strategy is SharingStrategy.MPS for rule in self.rules.replicas)

    @property
    def has_managed_slices(self) -> bool:
        return self.rules.memory is not None and self.memory_mps.is_managed

    @property
    def mps_namespaces(self) -> MpsNamespaces:
        """The option, if it can have an effect.

        Only a CDI specification gives a container its own namespace and keeps it from the others.
        """
        memory = self.rules.memory
        if memory is None or memory.threads is ThreadStrategy.SM_PARTITION:
            return MpsNamespaces.OFF
        possible = self.has_managed_slices and self.bind is Bind.CDI
        return self.memory_mps.namespaces if possible else MpsNamespaces.OFF

    def _check_mps_namespaces(self) -> None:
        wanted = self.memory_mps.namespaces
        if wanted is MpsNamespaces.REQUIRE and self.mps_namespaces is MpsNamespaces.OFF:
            raise ConfigError(
                "mps-namespaces",
                wanted.value,
                "it requires mps-mode managed and bind cdi, for gpuslice mps and for the agent, "
                "and other threads than sm_partition",
            )

    def _check_mps_root(self) -> None:
        uses_root = self.has_mps_replicas or self.has_managed_slices
        if uses_root and self.containers.mps_root is None:
            raise ConfigError(
                "mps-root",
                "",
                "using MPS requires --mps-root (MPS_ROOT, flags.mpsRoot): the directory on the "
                "host for the pipes of the MPS daemons, for example /run/nvidia/mps",
            )

    def _check_mps_replicas(self) -> None:
        if self.has_mps_replicas and self.rules.mig_strategy is MigStrategy.MIXED:
            raise ConfigError(
                "mig-strategy",
                "mixed",
                "sharing.mps does not support it; use sharing.timeSlicing, or the strategy none or "
                "single",
            )

    def _check_memory_resource(self) -> None:
        memory = self.rules.memory
        if memory is not None and memory.resource in set(_device_resources(self)):
            raise ConfigError(
                "resource",
                memory.resource,
                "devices are advertised with this name; use another name for memory units",
            )

    def _check_sockets(self) -> None:
        if not self.kubelet_socket:
            return
        check_absolute_path("kubelet-socket", self.kubelet_socket, f"for example {KUBELET_SOCKET}")
        directory = Path(self.kubelet_socket).parent
        resources = list(_device_resources(self))
        if self.rules.memory is not None:
            resources.append(self.rules.memory.resource)
        for resource in resources:
            check_socket_path(
                "kubelet-socket", self.kubelet_socket, directory / socket_name(resource)
            )


def socket_name(resource: str) -> str:
    """The names that gpushare and NVIDIA's plugin use, because tools depend on them."""
    if resource == GPUSHARE_RESOURCE:
        return "aliyungpushare.sock"
    if resource.startswith(_NVIDIA):
        return f"nvidia-{resource.removeprefix(_NVIDIA)}.sock"
    return f"gpuslice-{resource.replace('/', '_')}.sock"


def _device_resources(settings: Settings) -> Iterator[str]:
    """Resource names of devices, as far as they are known without the hardware."""
    rules = settings.rules
    yield from (rule.name for rule in (*rules.gpus, *(rules.mig or ())))
    yield from (name for rule in rules.replicas for name in rule.resources)
