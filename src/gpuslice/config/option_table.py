"""Every option of the agent, described once."""

from __future__ import annotations

from gpuslice.config.option import Kind, Option
from gpuslice.config.settings import (
    CDI_DIRECTORY,
    KUBELET_SOCKET,
    NESTED_DIRECTORY,
    NESTED_ENV,
)
from gpuslice.config.startup_options import NODE_LABEL
from gpuslice.slicing.rules import GPUSHARE_RESOURCE

MEMORY_OPTIONS = (
    Option(
        "resource",
        "Resource that counts memory.",
        GPUSHARE_RESOURCE,
        ("GPUSLICE_RESOURCE",),
        key="sharing.memory.resource",
    ),
    Option(
        "memory-devices",
        "GPUs whose memory is cut into units: all, none, a number of GPUs, or indices and UUIDs "
        "separated by commas.",
        "all with gpuslice agent, none with nvidia-device-plugin",
        ("GPUSLICE_MEMORY_DEVICES",),
        key="sharing.memory.devices",
    ),
    Option(
        "memory-unit",
        "What a request of 1 means: GiB, MiB, 256MiB, …",
        "GiB",
        ("GPUSLICE_MEMORY_UNIT",),
        key="sharing.memory.unit",
    ),
    Option(
        "memory-reserve",
        "Memory of each GPU that is kept back, for the MPS server.",
        "0",
        ("GPUSLICE_MEMORY_RESERVE",),
        key="sharing.memory.reserve",
    ),
    Option(
        "threads",
        "Share of threads: proportional to the memory, or none.",
        "proportional",
        ("GPUSLICE_THREADS",),
        key="sharing.memory.threads",
    ),
    Option(
        "mps-pipe",
        "Pipe directory of the node's MPS daemon; containers get it and their limits.",
        "",
        ("GPUSLICE_MPS_PIPE",),
        key="sharing.memory.mps.pipeDirectory",
    ),
    Option(
        "mps-check",
        "While MPS does not answer: require it, auto (only if it is visible from here), off.",
        "require",
        ("GPUSLICE_MPS_CHECK",),
        key="sharing.memory.mps.check",
    ),
)

DEVICE_OPTIONS = (
    Option(
        "mig-strategy",
        "GPUs in MIG mode: none offers them whole, single their devices as GPUs, mixed by profile.",
        "none",
        ("MIG_STRATEGY",),
        key="flags.migStrategy",
    ),
    Option(
        "device-discovery-strategy",
        "How GPUs are found: auto, nvml or tegra.",
        "auto",
        ("DEVICE_DISCOVERY_STRATEGY",),
        key="flags.deviceDiscoveryStrategy",
    ),
    Option(
        "shared-devices-allocation-policy",
        "Which replicas the kubelet should take: distributed, packed or spread.",
        "distributed",
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        key="flags.plugin.sharedDevicesAllocationPolicy",
    ),
    Option(
        "mps-root",
        "Directory of the MPS daemons on the host; replicas by MPS need it.",
        "",
        ("MPS_ROOT",),
        key="flags.mpsRoot",
    ),
    Option(
        "fail-on-init-error",
        "Without a driver or GPUs: exit, or wait and try again.",
        "true",
        ("FAIL_ON_INIT_ERROR",),
        Kind.SWITCH,
        key="flags.failOnInitError",
    ),
    Option(
        "health-checks",
        "Watch GPUs for errors.",
        "true",
        ("GPUSLICE_HEALTH_CHECKS",),
        Kind.SWITCH,
        key="health.enabled",
    ),
    Option(
        "disabled-xids",
        "XIDs that leave a GPU healthy, separated by commas; all or xids for every one.",
        "",
        ("DP_DISABLE_HEALTHCHECKS",),
        Kind.VARIABLE,
    ),
    Option(
        "enabled-xids",
        "XIDs that count although they would be ignored, separated by commas; all for every one.",
        "",
        ("DP_ENABLE_HEALTHCHECKS",),
        Kind.VARIABLE,
    ),
)

CONTAINER_OPTIONS = (
    Option(
        "device-list-strategy",
        "How containers get their devices: any of envvar, volume-mounts, cdi-annotations, cdi-cri.",
        "envvar",
        ("DEVICE_LIST_STRATEGY",),
        Kind.LIST,
        key="flags.plugin.deviceListStrategy",
    ),
    Option(
        "device-id-strategy",
        "How devices are named to the runtime: uuid or index.",
        "uuid",
        ("DEVICE_ID_STRATEGY",),
        key="flags.plugin.deviceIDStrategy",
    ),
    Option(
        "pass-device-specs",
        "Name the device nodes to the kubelet too, for its static CPU manager.",
        "false",
        ("PASS_DEVICE_SPECS",),
        Kind.SWITCH,
        key="flags.plugin.passDeviceSpecs",
    ),
    Option(
        "driver-root",
        "Root of the driver on the host.",
        "/",
        ("NVIDIA_DRIVER_ROOT",),
        key="flags.nvidiaDriverRoot",
        aliases=("nvidia-driver-root",),
    ),
    Option(
        "dev-root",
        "Root of the driver's device nodes on the host.",
        "as driver-root",
        ("NVIDIA_DEV_ROOT",),
        key="flags.nvidiaDevRoot",
        aliases=("nvidia-dev-root",),
    ),
    Option(
        "driver-root-ctr-path",
        "Where the agent sees the root of the driver.",
        "/driver-root",
        ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        key="flags.plugin.containerDriverRoot",
        aliases=("container-driver-root",),
    ),
    Option(
        "gdrcopy-enabled",
        "Give containers GDRCopy.",
        "false",
        ("GDRCOPY_ENABLED",),
        Kind.SWITCH,
        key="flags.gdrcopyEnabled",
    ),
    Option(
        "gds-enabled",
        "Give containers GPUDirect Storage.",
        "false",
        ("GDS_ENABLED",),
        Kind.SWITCH,
        key="flags.gdsEnabled",
    ),
    Option(
        "mofed-enabled",
        "Give containers the InfiniBand devices.",
        "false",
        ("MOFED_ENABLED",),
        Kind.SWITCH,
        key="flags.mofedEnabled",
    ),
    Option(
        "imex-channel-ids",
        "IMEX channels that containers get: nothing, or 0.",
        "",
        ("IMEX_CHANNEL_IDS",),
        Kind.LIST,
        key="imex.channelIDs",
    ),
    Option(
        "imex-required",
        "A missing IMEX channel is an error.",
        "false",
        ("IMEX_REQUIRED",),
        Kind.SWITCH,
        key="imex.required",
    ),
)

CDI_OPTIONS = (
    Option(
        "cdi-annotation-prefix",
        "Prefix of the annotation that names CDI devices.",
        "cdi.k8s.io/",
        ("CDI_ANNOTATION_PREFIX",),
        key="flags.plugin.cdiAnnotationPrefix",
    ),
    Option(
        "nvidia-cdi-hook-path",
        "Hook program on the host, as CDI specifications name it.",
        "/usr/bin/nvidia-ctk",
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        key="flags.plugin.nvidiaCTKPath",
        aliases=("nvidia-ctk-path",),
    ),
    Option(
        "cdi-feature-flags",
        "Features of CDI specifications, by NVIDIA's names.",
        "",
        ("CDI_FEATURE_FLAGS",),
        Kind.LIST,
    ),
    Option(
        "cdi-disable-hooks",
        "Hooks that CDI specifications leave out, or all.",
        "",
        ("CDI_DISABLE_HOOKS",),
        Kind.LIST,
    ),
    Option(
        "cdi-directory",
        "Where CDI specifications are written.",
        CDI_DIRECTORY,
        ("GPUSLICE_CDI_DIRECTORY",),
    ),
    Option(
        "cdi-remove-on-exit",
        "Remove the CDI specifications when the agent ends.",
        "false",
        ("GPUSLICE_CDI_REMOVE_ON_EXIT",),
        Kind.SWITCH,
    ),
)

NESTED_OPTIONS = (
    Option(
        "nested",
        "Nested clusters: host gives GPUs to containers that are nodes, guest is such a node, off.",
        "off",
        ("NESTED",),
        key="flags.nested",
    ),
    Option(
        "nested-env",
        "File of a guest that names the GPUs it was given.",
        NESTED_ENV,
        ("NESTED_ENV",),
        key="flags.nestedEnv",
    ),
    Option(
        "nested-dir",
        "Where a host keeps such files.",
        NESTED_DIRECTORY,
        ("NESTED_DIR",),
        key="flags.nestedDir",
    ),
    Option(
        "nested-devices",
        "GPUs that a guest was given, where it has no such file.",
        "",
        ("NVIDIA_ALLOCATED_DEVICES",),
        Kind.VARIABLE,
    ),
)

SOURCE_OPTIONS = (
    Option(
        "kubelet-socket",
        "Where the kubelet takes registrations; empty: never register.",
        KUBELET_SOCKET,
        ("KUBELET_SOCKET",),
    ),
    Option("config-file", "Settings in YAML or JSON; flags win.", "", ("CONFIG_FILE",)),
    Option(
        "lenient",
        "An unknown key of the file is a warning, not an error.",
        "false",
        ("GPUSLICE_LENIENT",),
        Kind.SWITCH,
    ),
    Option(
        "config-file-srcdir",
        "Directory of configurations, one of which is chosen by the node's label.",
        "",
        ("CONFIG_FILE_SRCDIR",),
    ),
    Option("node-name", "This node.", "", ("NODE_NAME",)),
    Option("pod-name", "The agent's pod, to own the labels it publishes.", "", ("POD_NAME",)),
    Option("node-label", "Label that chooses the configuration.", NODE_LABEL, ("NODE_LABEL",)),
    Option("default-config", "Configuration of a node without the label.", "", ("DEFAULT_CONFIG",)),
    Option(
        "fallback-strategies",
        "Without label and default, in this order: named takes the configuration `default`, "
        "single the only one, empty none.",
        "",
        ("FALLBACK_STRATEGIES",),
        Kind.LIST,
    ),
    Option("kubeconfig", "How to reach the API server.", "the pod's own", ("KUBECONFIG",)),
)

TELEMETRY_OPTIONS = (
    Option(
        "labels",
        "Publish labels of the GPUs: off, file, node-feature or node.",
        "off",
        ("GPUSLICE_LABELS",),
    ),
    Option(
        "metrics-address",
        "Serve metrics and probes on host:port.",
        "off",
        ("GPUSLICE_METRICS_ADDRESS",),
    ),
    Option(
        "log-level",
        "The least that is logged: debug, info, warning or error.",
        "info",
        ("GPUSLICE_LOG_LEVEL",),
    ),
    Option("log-format", "Log lines as text or json.", "text", ("GPUSLICE_LOG_FORMAT",)),
)

OPTIONS = (
    *MEMORY_OPTIONS,
    *DEVICE_OPTIONS,
    *CONTAINER_OPTIONS,
    *CDI_OPTIONS,
    *NESTED_OPTIONS,
    *SOURCE_OPTIONS,
    *TELEMETRY_OPTIONS,
)
