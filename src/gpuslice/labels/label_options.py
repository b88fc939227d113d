"""The options of `gpuslice labels` and `gpu-feature-discovery`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option, OptionGroup, OptionKind, options_in
from gpuslice.config.option_values import OptionReader, OptionValues
from gpuslice.config.resource_options import MEMORY_OPTIONS
from gpuslice.config.settings import LabelSettings
from gpuslice.config.startup_options import LabelsMode
from gpuslice.config.value_parsers import parse_interval

_BY_NAME = {option.name: option for option in OPTIONS}


def _agent_option(name: str, variable: str = "") -> Option:
    """An option of the agent. `variable` takes precedence over the variables of the agent."""
    option = _BY_NAME[name]
    return replace(option, variables=(variable, *option.variables)) if variable else option


PUBLISHING_OPTIONS = (
    Option(
        "oneshot",
        "Publish the labels once and exit.",
        "false",
        ("GFD_ONESHOT",),
        OptionKind.SWITCH,
        key="flags.gfd.oneshot",
    ),
    Option(
        "no-timestamp",
        "Omit the label with the time at which the settings were loaded.",
        "false",
        ("GFD_NO_TIMESTAMP",),
        OptionKind.SWITCH,
        key="flags.gfd.noTimestamp",
    ),
    Option(
        "sleep-interval",
        "Interval between scans of the GPUs, for example 60s or 5m. With infinite, scan once.",
        "60s",
        ("GFD_SLEEP_INTERVAL",),
        key="flags.gfd.sleepInterval",
    ),
    Option(
        "output-file",
        "File for node-feature-discovery. If empty, print to standard output.",
        LabelSettings().output_file,
        ("GFD_OUTPUT_FILE",),
        key="flags.gfd.outputFile",
        aliases=("output", "o"),
    ),
    Option(
        "machine-type-file",
        "File with the machine type. If empty, the type is unknown.",
        LabelSettings().machine_type_file,
        ("GFD_MACHINE_TYPE_FILE",),
        key="flags.gfd.machineTypeFile",
    ),
    Option(
        "use-node-feature-api",
        "Publish a NodeFeature object, not a file.",
        "true",
        ("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"),
        OptionKind.SWITCH,
        key="flags.useNodeFeatureAPI",
    ),
    Option(
        "mode",
        "Where to publish labels: file, node-feature, or node (works without "
        "node-feature-discovery).",
        "file with --output-file, otherwise depends on --use-node-feature-api",
        ("GPUSLICE_LABELS_MODE",),
    ),
    Option("namespace", "Namespace of the NodeFeature object.", "default", ("NAMESPACE",)),
    Option("pod-name", "Name of this pod, which owns the NodeFeature object.", "", ("POD_NAME",)),
    _agent_option("node-name"),
    _agent_option("kubeconfig"),
)
_GPU_OPTIONS = (
    _agent_option("mig-strategy", "GFD_MIG_STRATEGY"),
    _agent_option("fail-on-init-error", "GFD_FAIL_ON_INIT_ERROR"),
    _agent_option("device-discovery-strategy"),
    _agent_option("driver-root-ctr-path"),
    _agent_option("mps-root"),
    _agent_option("nested"),
    _agent_option("nested-env"),
    _agent_option("nested-devices"),
)
_CONFIGURATION_OPTIONS = (
    _agent_option("config-file", "GFD_CONFIG_FILE"),
    _agent_option("lenient"),
    _agent_option("log-level"),
    _agent_option("log-format"),
)
# NVIDIA's program limits its requests to the API server with these. One scan a minute needs no
# limit.
_OPTIONS_WITHOUT_EFFECT = (
    Option("kube-api-qps", "No effect.", "", ("KUBE_API_QPS",)),
    Option("kube-api-burst", "No effect.", "", ("KUBE_API_BURST",)),
)

_COMMON_GROUPS = (
    OptionGroup("Labels", PUBLISHING_OPTIONS),
    OptionGroup("GPUs", _GPU_OPTIONS),
    OptionGroup("Configuration and logs", _CONFIGURATION_OPTIONS),
)
GFD_GROUPS = (*_COMMON_GROUPS, OptionGroup("Accepted without effect", _OPTIONS_WITHOUT_EFFECT))
# The labels contain the resources that an agent with the same options advertises.
LABELS_GROUPS = (*_COMMON_GROUPS, OptionGroup("Memory units", MEMORY_OPTIONS))
GFD_OPTIONS = options_in(GFD_GROUPS)
LABELS_OPTIONS = options_in(LABELS_GROUPS)

_MODES = tuple(mode for mode in LabelsMode if mode is not LabelsMode.OFF)


@dataclass(frozen=True, slots=True)
class LabelTarget:
    """Where to publish labels, from flags and environment variables."""

    # None: the settings decide.
    mode: LabelsMode | None = None
    node_name: str = ""
    namespace: str = "default"
    pod_name: str = ""
    kubeconfig: Path | None = None

    def mode_for(self, labels: LabelSettings) -> LabelsMode:
        """Raises ConfigError if the mode requires the name of the node."""
        by_settings = LabelsMode.NODE_FEATURE if labels.use_node_feature_api else LabelsMode.FILE
        mode = self.mode or by_settings
        if mode is not LabelsMode.FILE and not self.node_name:
            raise ConfigError(
                "node-name",
                "",
                "set the name of the node (NODE_NAME), or write a file: "
                "--use-node-feature-api=false, and --output-file= for standard output",
            )
        return mode


def label_target(values: OptionValues) -> LabelTarget:
    """Raises ConfigError."""
    options = OptionReader(values)
    return LabelTarget(
        mode=options.choice_from("mode", _MODES),
        node_name=options.text("node-name", ""),
        namespace=options.text("namespace", "default"),
        pod_name=options.text("pod-name", ""),
        kubeconfig=options.path("kubeconfig"),
    )


def label_settings(from_file: LabelSettings, values: OptionValues) -> LabelSettings:
    """Flags and environment variables take precedence over the file. Raises ConfigError."""
    options = OptionReader(values)
    interval = options.get("sleep-interval")
    return LabelSettings(
        oneshot=options.switch("oneshot", from_file.oneshot),
        no_timestamp=options.switch("no-timestamp", from_file.no_timestamp),
        sleep_seconds=(
            from_file.sleep_seconds
            if interval is None
            else parse_interval(interval.source, interval.text)
        ),
        output_file=options.text("output-file", from_file.output_file),
        machine_type_file=options.text("machine-type-file", from_file.machine_type_file),
        use_node_feature_api=options.switch("use-node-feature-api", from_file.use_node_feature_api),
    )
