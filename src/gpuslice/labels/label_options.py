"""The options of feature discovery: NVIDIA's, and those that decide what the node offers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.option_values import OptionReader, OptionValues
from gpuslice.config.resource_options import MEMORY_OPTIONS
from gpuslice.config.settings import LabelSettings
from gpuslice.config.startup_options import LabelsMode
from gpuslice.config.value_parsers import parse_interval

_BY_NAME = {option.name: option for option in OPTIONS}


def _shared(name: str, variable: str = "") -> Option:
    """An option of the agent, here with a variable of its own in front."""
    option = _BY_NAME[name]
    return replace(option, variables=(variable, *option.variables)) if variable else option


PUBLISHING_OPTIONS = (
    Option(
        "oneshot",
        "Publish once and exit.",
        "false",
        ("GFD_ONESHOT",),
        OptionKind.SWITCH,
        key="flags.gfd.oneshot",
    ),
    Option(
        "no-timestamp",
        "Leave out when the settings were read.",
        "false",
        ("GFD_NO_TIMESTAMP",),
        OptionKind.SWITCH,
        key="flags.gfd.noTimestamp",
    ),
    Option(
        "sleep-interval",
        "How long to wait before looking again, as 60s or 5m; infinite: look once.",
        "60s",
        ("GFD_SLEEP_INTERVAL",),
        key="flags.gfd.sleepInterval",
    ),
    Option(
        "output-file",
        "File for node-feature-discovery; empty: standard output.",
        LabelSettings().output_file,
        ("GFD_OUTPUT_FILE",),
        key="flags.gfd.outputFile",
        aliases=("output", "o"),
    ),
    Option(
        "machine-type-file",
        "File that names the machine; empty: unknown.",
        LabelSettings().machine_type_file,
        ("GFD_MACHINE_TYPE_FILE",),
        key="flags.gfd.machineTypeFile",
    ),
    Option(
        "use-node-feature-api",
        "Publish as a NodeFeature object, not as a file.",
        "true",
        ("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"),
        OptionKind.SWITCH,
        key="flags.useNodeFeatureAPI",
    ),
    Option(
        "mode",
        "Where labels go: file, node-feature or node (without node-feature-discovery).",
        "file with output-file, else as use-node-feature-api says",
        ("GPUSLICE_LABELS_MODE",),
    ),
    Option("namespace", "Namespace of the NodeFeature object.", "default", ("NAMESPACE",)),
    Option("pod-name", "This pod, the NodeFeature object's owner.", "", ("POD_NAME",)),
)
# NVIDIA's client has budgets for its requests; one look a minute needs none.
_WITHOUT_EFFECT = (
    Option("kube-api-qps", "Without effect.", "", ("KUBE_API_QPS",)),
    Option("kube-api-burst", "Without effect.", "", ("KUBE_API_BURST",)),
)
NVIDIA_OPTIONS = (
    _shared("mig-strategy", "GFD_MIG_STRATEGY"),
    _shared("fail-on-init-error", "GFD_FAIL_ON_INIT_ERROR"),
    *PUBLISHING_OPTIONS,
    _shared("config-file", "GFD_CONFIG_FILE"),
    _shared("device-discovery-strategy"),
    _shared("driver-root-ctr-path"),
    _shared("kubeconfig"),
    _shared("node-name"),
    *_WITHOUT_EFFECT,
    _shared("mps-root"),
    _shared("nested"),
    _shared("nested-env"),
    _shared("nested-devices"),
    _shared("lenient"),
    _shared("log-level"),
    _shared("log-format"),
)
# What an agent with the same options would offer is what the labels are about.
LABELS_OPTIONS = (
    *MEMORY_OPTIONS,
    *(option for option in NVIDIA_OPTIONS if option not in _WITHOUT_EFFECT),
)


# Who starts this program wants labels.
_MODES = tuple(mode for mode in LabelsMode if mode is not LabelsMode.OFF)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the labels go, as far as the command line and the environment say it."""

    # None: the settings decide.
    mode: LabelsMode | None = None
    node_name: str = ""
    namespace: str = "default"
    pod_name: str = ""
    kubeconfig: Path | None = None

    def mode_with(self, labels: LabelSettings) -> LabelsMode:
        """Raises ConfigError if the Node is to be told and has no name."""
        by_api = LabelsMode.NODE_FEATURE if labels.use_node_feature_api else LabelsMode.FILE
        mode = self.mode or by_api
        if mode is not LabelsMode.FILE and not self.node_name:
            raise ConfigError(
                "node-name",
                "",
                "name the node whose labels are published (NODE_NAME), or write a file: "
                "--use-node-feature-api=false, and --output-file= for standard output",
            )
        return mode


def target_of(given: OptionValues) -> Target:
    said = OptionReader(given)
    kubeconfig = said.text("kubeconfig", "")
    return Target(
        mode=said.choice_from("mode", _MODES),
        node_name=said.text("node-name", ""),
        namespace=said.text("namespace", "default"),
        pod_name=said.text("pod-name", ""),
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
    )


def with_flags(labels: LabelSettings, given: OptionValues) -> LabelSettings:
    """What the file says, as far as neither flags nor variables say otherwise."""
    said = OptionReader(given)
    interval = said.get("sleep-interval")
    return LabelSettings(
        oneshot=said.switch("oneshot", labels.oneshot),
        no_timestamp=said.switch("no-timestamp", labels.no_timestamp),
        sleep_seconds=(
            labels.sleep_seconds
            if interval is None
            else parse_interval(interval.source, interval.text)
        ),
        output_file=said.text("output-file", labels.output_file),
        machine_type_file=said.text("machine-type-file", labels.machine_type_file),
        use_node_feature_api=said.switch("use-node-feature-api", labels.use_node_feature_api),
    )
