"""The settings of the agent as a table: how each is set, its default and another value."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.cli.agent import AGENT_DEFAULTS
from gpuslice.cli.nvidia import DEFAULTS
from gpuslice.config.memory_limit_settings import MemoryLimitMode
from gpuslice.config.settings import (
    HOST_SHM,
    Bind,
    DeviceId,
    DeviceList,
    Discovery,
    MpsCheck,
    MpsNamespaces,
    Settings,
)
from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.slicing.rules import Advertise, IdForm, MemoryRule, MigStrategy, Policy
from gpuslice.slicing.thread_annotations import ThreadAnnotations
from gpuslice.slicing.threads import ThreadStrategy
from gpuslice.slicing.units import MemoryUnit

ENVVAR = frozenset({DeviceList.ENVVAR})
BOTH_CDI = frozenset({DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI})


@dataclass(frozen=True)
class Row:
    """A setting: the default of NVIDIA's plugin, and another value as text and as setting.

    Settings of memory units have the default of `gpuslice agent`, because NVIDIA's plugin has none.
    """

    flag: str
    variable: str
    attribute: str
    default: object
    text: str
    value: object
    yaml: str = ""
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()

    @property
    def defaults(self) -> Settings:
        return AGENT_DEFAULTS if self.attribute.startswith("rules.memory.") else DEFAULTS

    def __str__(self) -> str:
        return self.flag


NVIDIA = [
    Row(
        "mig-strategy", "MIG_STRATEGY", "rules.mig_strategy", MigStrategy.NONE, "mixed",
        MigStrategy.MIXED, "flags: {migStrategy: mixed}", invalid=("both", "Single", ""),
    ),
    Row(
        "fail-on-init-error", "FAIL_ON_INIT_ERROR", "fail_on_init_error", True, "false", False,
        "flags: {failOnInitError: false}", invalid=("no", "2"),
    ),
    Row(
        "driver-root", "NVIDIA_DRIVER_ROOT", "containers.driver_root", "/", "/run/nvidia/driver",
        "/run/nvidia/driver", "flags: {nvidiaDriverRoot: /run/nvidia/driver}",
        aliases=("nvidia-driver-root",), invalid=("run",),
    ),
    Row(
        "dev-root", "NVIDIA_DEV_ROOT", "containers.dev_root", "/", "/dev-root", "/dev-root",
        "flags: {nvidiaDevRoot: /dev-root}", aliases=("nvidia-dev-root",), invalid=("dev",),
    ),
    Row(
        "pass-device-specs", "PASS_DEVICE_SPECS", "containers.pass_device_specs", False, "true",
        True, "flags: {plugin: {passDeviceSpecs: true}}", invalid=("on",),
    ),
    Row(
        "device-list-strategy", "DEVICE_LIST_STRATEGY", "containers.device_list", ENVVAR,
        "cdi-annotations,cdi-cri", BOTH_CDI,
        "flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}",
        invalid=("env", "envvar,cdi", ""),
    ),
    Row(
        "device-id-strategy", "DEVICE_ID_STRATEGY", "containers.device_id", DeviceId.UUID, "index",
        DeviceId.INDEX, "flags: {plugin: {deviceIDStrategy: index}}", invalid=("name",),
    ),
    Row(
        "gdrcopy-enabled", "GDRCOPY_ENABLED", "containers.gdrcopy", False, "true", True,
        "flags: {gdrcopyEnabled: true}", invalid=("yes",),
    ),
    Row(
        "gds-enabled", "GDS_ENABLED", "containers.gds", False, "true", True,
        "flags: {gdsEnabled: true}", invalid=("yes",),
    ),
    Row(
        "mofed-enabled", "MOFED_ENABLED", "containers.mofed", False, "true", True,
        "flags: {mofedEnabled: true}", invalid=("yes",),
    ),
    Row(
        "cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX", "containers.cdi_annotation_prefix",
        "cdi.k8s.io/", "example.com/", "example.com/",
        "flags: {plugin: {cdiAnnotationPrefix: example.com/}}",
    ),
    Row(
        "nvidia-cdi-hook-path", "NVIDIA_CDI_HOOK_PATH", "cdi.hook_path", "/usr/bin/nvidia-ctk",
        "/opt/nvidia-cdi-hook", "/opt/nvidia-cdi-hook",
        "flags: {plugin: {nvidiaCTKPath: /opt/nvidia-cdi-hook}}",
        aliases=("nvidia-ctk-path",), variables=("NVIDIA_CTK_PATH",), invalid=("nvidia-ctk",),
    ),
    Row(
        "driver-root-ctr-path", "DRIVER_ROOT_CTR_PATH", "cdi.container_driver_root",
        "/driver-root", "/host", "/host", "flags: {plugin: {containerDriverRoot: /host}}",
        aliases=("container-driver-root",), variables=("CONTAINER_DRIVER_ROOT",), invalid=("host",),
    ),
    Row(
        "mps-root", "MPS_ROOT", "containers.mps_root", None, "/run/nvidia/mps", "/run/nvidia/mps",
        "flags: {mpsRoot: /run/nvidia/mps}", invalid=("mps",),
    ),
    Row(
        "shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY", "policy",
        Policy.DISTRIBUTED, "packed", Policy.PACKED,
        "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}", invalid=("random",),
    ),
    Row(
        "device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "discovery", Discovery.AUTO,
        "tegra", Discovery.TEGRA, "flags: {deviceDiscoveryStrategy: tegra}", invalid=("wsl",),
    ),
    Row(
        "bind", "GPUSLICE_BIND", "bind", Bind.ENV, "cdi", Bind.CDI, "flags: {bind: cdi}",
        invalid=("CDI", "none"),
    ),
    Row(
        "thread-annotations", "GPUSLICE_THREAD_ANNOTATIONS", "thread_annotations",
        ThreadAnnotations.OFF, "lower", ThreadAnnotations.LOWER,
        "flags: {threadAnnotations: lower}", invalid=("on", "raise"),
    ),
    Row(
        "memory-limits", "GPUSLICE_MEMORY_LIMITS", "memory_limits.mode", MemoryLimitMode.OFF,
        "driver", MemoryLimitMode.DRIVER, "flags: {memoryLimits: driver}",
        invalid=("on", "cgroup"),
    ),
    Row(
        "cgroup-root", "GPUSLICE_CGROUP_ROOT", "memory_limits.cgroup_root", "/sys/fs/cgroup",
        "/host/cgroup", "/host/cgroup", "flags: {cgroupRoot: /host/cgroup}", invalid=("cgroup",),
    ),
    Row(
        "imex-channel-ids", "IMEX_CHANNEL_IDS", "containers.imex_channels", (), "0", (0,),
        "imex: {channelIDs: [0]}", invalid=("1", "0,1", "0,0", "x"),
    ),
    Row(
        "imex-required", "IMEX_REQUIRED", "containers.imex_required", False, "true", True,
        "imex: {required: true}", invalid=("maybe",),
    ),
    Row(
        "kubelet-socket", "KUBELET_SOCKET", "kubelet_socket",
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/k.sock", "/k.sock", invalid=("k.sock",),
    ),
    Row(
        "cdi-feature-flags", "CDI_FEATURE_FLAGS", "cdi.feature_flags", frozenset(),
        "disable-nvsandboxutils,disable-ipc-discoverer",
        frozenset({"disable-nvsandboxutils", "disable-ipc-discoverer"}),
    ),
    Row(
        "cdi-disable-hooks", "CDI_DISABLE_HOOKS", "cdi.disabled_hooks", frozenset(), "all",
        frozenset({"all"}),
    ),
]  # fmt: skip

OURS = [
    Row(
        "resource", "GPUSLICE_RESOURCE", "rules.memory.resource", "aliyun.com/gpu-mem", "a.com/b",
        "a.com/b", "sharing: {memory: {resource: a.com/b}}", invalid=("gpu-mem", ""),
    ),
    Row(
        "memory-devices", "GPUSLICE_MEMORY_DEVICES", "rules.memory", None, "all", MemoryRule(),
        "sharing: {memory: {devices: all}}", invalid=("some", "0", "0,x", "0:1,2"),
    ),
    Row(
        "memory-unit", "GPUSLICE_MEMORY_UNIT", "rules.memory.unit", MemoryUnit(1024), "256MiB",
        MemoryUnit(256), "sharing: {memory: {unit: 256MiB}}", invalid=("6GB", ""),
    ),
    Row(
        "memory-reserve", "GPUSLICE_MEMORY_RESERVE", "rules.memory.reserve_mib", None, "1GiB",
        1024,
        "sharing: {memory: {reserve: 1GiB}}", invalid=("x", "512"),
    ),
    Row(
        "threads", "GPUSLICE_THREADS", "rules.memory.threads", ThreadStrategy.PROPORTIONAL, "none",
        ThreadStrategy.NONE, "sharing: {memory: {threads: none}}",
        invalid=("half", "", "30", "0%", "101%", "0 SMs", "1.5%", "explicit"),
    ),
    Row(
        "memory-advertise", "GPUSLICE_MEMORY_ADVERTISE", "rules.memory.advertise",
        Advertise.ONE_GPU, "all", Advertise.ALL, "sharing: {memory: {advertise: all}}",
        invalid=("two-gpus", ""),
    ),
    Row(
        "memory-ids", "GPUSLICE_MEMORY_IDS", "rules.memory.ids", IdForm.AUTO, "short", IdForm.SHORT,
        "sharing: {memory: {ids: short}}", invalid=("tiny", ""),
    ),
    Row(
        "mps-shm", "GPUSLICE_MPS_SHM", "memory_mps.shm", None, "host", HOST_SHM,
        "sharing: {memory: {mps: {shm: host}}}", invalid=("shm",),
    ),
    Row(
        "mps-namespaces", "GPUSLICE_MPS_NAMESPACES", "memory_mps.namespaces", MpsNamespaces.AUTO,
        "off", MpsNamespaces.OFF, "sharing: {memory: {mps: {namespaces: off}}}", invalid=("yes",),
    ),
    Row(
        "mps-pipe", "GPUSLICE_MPS_PIPE", "memory_mps.pipe", None, "/run/mps", "/run/mps",
        "sharing: {memory: {mps: {pipeDirectory: /run/mps}}}", invalid=("mps", "/" + "x" * 87),
    ),
    Row(
        "mps-check", "GPUSLICE_MPS_CHECK", "memory_mps.check", MpsCheck.REQUIRE, "off",
        MpsCheck.OFF, "sharing: {memory: {mps: {check: off}}}", invalid=("maybe",),
    ),
    Row(
        "health-checks", "GPUSLICE_HEALTH_CHECKS", "health.enabled", True, "false", False,
        "health: {enabled: false}", invalid=("never",),
    ),
    Row(
        "nested", "NESTED", "rules.nested", False, "host", True, "flags: {nested: host}",
        invalid=("inside",),
    ),
    Row(
        "nested-file", "NESTED_FILE", "nested_file", "/gpuslice/gpu.env", "none", None,
        "flags: {nestedFile: none}", invalid=("n", "/", "//gpu.env", "/a/../b", "/dir/"),
    ),
    Row(
        "nested-dir", "NESTED_DIR", "nested_directory", "/var/lib/gpuslice/nested", "/n", "/n",
        "flags: {nestedDir: /n}", invalid=("n",),
    ),
    Row(
        "mps-hide-privileged-socket", "GPUSLICE_MPS_HIDE_PRIVILEGED_SOCKET",
        "containers.mps_hide_privileged_socket", True, "false", False,
        "mps: {hidePrivilegedSocket: false}", invalid=("no",),
    ),
    Row(
        "mps-pipe-read-only", "GPUSLICE_MPS_PIPE_READ_ONLY", "containers.mps_pipe_read_only", False,
        "true", True, "mps: {pipeReadOnly: true}", invalid=("ro",),
    ),
    Row(
        "watchdog-mode", "GPUSLICE_WATCHDOG_MODE", "watchdog.mode", WatchdogMode.REPORT, "off",
        WatchdogMode.OFF, "watchdog: {mode: off}", invalid=("kill",),
    ),
    Row(
        "watchdog-grace", "GPUSLICE_WATCHDOG_GRACE", "watchdog.grace_seconds", 30.0, "1m30s", 90.0,
        "watchdog: {grace: 1m30s}", invalid=("5", "-1s", "25h", "infinite"),
    ),
    Row(
        "watchdog-slack", "GPUSLICE_WATCHDOG_SLACK", "watchdog.slack_mib", 256, "1GiB", 1024,
        "watchdog: {slack: 1GiB}", invalid=("5", "-1GiB", "much"),
    ),
    Row(
        "container-logs", "GPUSLICE_CONTAINER_LOGS", "watchdog.container_logs",
        "/var/log/containers", "/logs", "/logs", "watchdog: {containerLogs: /logs}",
        invalid=("logs",),
    ),
    Row(
        "cdi-directory", "GPUSLICE_CDI_DIRECTORY", "cdi.directory", "/var/run/cdi", "/etc/cdi",
        "/etc/cdi", invalid=("cdi",),
    ),
    Row(
        "cdi-remove-on-exit", "GPUSLICE_CDI_REMOVE_ON_EXIT", "cdi.remove_on_exit", False, "true",
        True, invalid=("sometimes",),
    ),
]  # fmt: skip

ROWS = NVIDIA + OURS
