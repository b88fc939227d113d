"""All options of the agent, in the groups of --help."""

from __future__ import annotations

from gpuslice.config.container_options import CDI_OPTIONS, CONTAINER_OPTIONS, NESTED_OPTIONS
from gpuslice.config.memory_limit_settings import MEMORY_LIMIT_OPTIONS
from gpuslice.config.option_definition import Option, OptionGroup, OptionKind, options_in
from gpuslice.config.resource_options import DEVICE_OPTIONS, MEMORY_OPTIONS
from gpuslice.config.settings import KUBELET_SOCKET
from gpuslice.config.startup_options import NODE_LABEL
from gpuslice.config.watchdog_settings import WATCHDOG_OPTIONS

SOURCE_OPTIONS = (
    Option(
        "kubelet-socket",
        "Registration socket of the kubelet. If empty, the agent does not register.",
        KUBELET_SOCKET,
        ("KUBELET_SOCKET",),
    ),
    Option(
        "config-file",
        "Configuration file in YAML or JSON. Flags and environment variables take precedence.",
        "",
        ("CONFIG_FILE",),
    ),
    Option(
        "lenient",
        "Report unknown keys of the file as warnings, not as errors.",
        "false",
        ("GPUSLICE_LENIENT",),
        OptionKind.SWITCH,
    ),
    Option(
        "config-file-srcdir",
        "Directory of configuration files. The label of the node chooses one.",
        "",
        ("CONFIG_FILE_SRCDIR",),
    ),
    Option("node-name", "Name of this node.", "", ("NODE_NAME",)),
    Option(
        "pod-name", "Name of this pod, which owns the labels that it publishes.", "", ("POD_NAME",)
    ),
    Option("node-label", "Label that chooses the configuration.", NODE_LABEL, ("NODE_LABEL",)),
    Option("default-config", "Configuration of nodes without the label.", "", ("DEFAULT_CONFIG",)),
    Option(
        "fallback-strategies",
        "What to use without label and default configuration, in this order: named (the "
        "configuration `default`), single (the only one), empty (none).",
        "",
        ("FALLBACK_STRATEGIES",),
        OptionKind.LIST,
    ),
    Option(
        "kubeconfig",
        "Kubeconfig file for the API server.",
        "the service account of the pod",
        ("KUBECONFIG",),
    ),
)

TELEMETRY_OPTIONS = (
    Option(
        "labels",
        "Where to publish labels of the GPUs: off, file, node-feature or node.",
        "off",
        ("GPUSLICE_LABELS",),
    ),
    Option(
        "metrics-address",
        "Address for metrics and probes, host:port. Without a host: the address of the pod, and "
        "loopback.",
        "off",
        ("GPUSLICE_METRICS_ADDRESS",),
    ),
    Option(
        "log-level",
        "Minimum level of log lines: debug, info, warning or error.",
        "info",
        ("GPUSLICE_LOG_LEVEL",),
    ),
    Option("log-format", "Format of log lines: text or json.", "text", ("GPUSLICE_LOG_FORMAT",)),
)

OPTION_GROUPS = (
    OptionGroup("Memory units", MEMORY_OPTIONS),
    OptionGroup("GPUs and health", DEVICE_OPTIONS),
    OptionGroup("Containers", CONTAINER_OPTIONS),
    OptionGroup("CDI", CDI_OPTIONS),
    OptionGroup("Nested clusters", NESTED_OPTIONS),
    OptionGroup("Watchdog", WATCHDOG_OPTIONS),
    OptionGroup("Memory limits of the driver", MEMORY_LIMIT_OPTIONS),
    OptionGroup("Configuration", SOURCE_OPTIONS),
    OptionGroup("Labels, metrics and logs", TELEMETRY_OPTIONS),
)
OPTIONS = options_in(OPTION_GROUPS)
