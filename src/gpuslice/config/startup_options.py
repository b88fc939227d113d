"""Options that are read only at startup: where the configuration comes from, metrics, labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuslice.config.config_choice import Fallback
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_values import OptionReader, OptionValues, with_source
from gpuslice.config.value_parsers import parse_address

NODE_LABEL = "nvidia.com/device-plugin.config"


class LabelsMode(Enum):
    """Where the agent publishes the labels of the node."""

    OFF = "off"
    FILE = "file"  # in the features.d directory of node-feature-discovery
    NODE_FEATURE = "node-feature"  # as a NodeFeature object
    NODE = "node"  # on the Node object


@dataclass(frozen=True, slots=True)
class StartupOptions:
    # The configuration file. Only one of config_file and config_dir can be set.
    config_file: Path | None = None
    # A directory of configuration files; the label of the node chooses one.
    config_dir: Path | None = None
    node_name: str | None = None
    node_label: str = NODE_LABEL
    default_config: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    # None: the service account of the pod.
    kubeconfig: Path | None = None
    # host:port. None: no metrics.
    metrics_address: str | None = None
    labels: LabelsMode = LabelsMode.OFF
    # The pod of the agent, which owns the NodeFeature object.
    pod_name: str = ""

    def __post_init__(self) -> None:
        if self.config_file is not None and self.config_dir is not None:
            raise ConfigError(
                "config-file",
                str(self.config_file),
                f"config-file-srcdir is set to {self.config_dir}; set only one of the two",
            )
        if self.config_dir is not None and self.node_name and not self.node_label:
            raise ConfigError(
                "node-label",
                "",
                f"set the label that chooses the configuration, for example {NODE_LABEL}",
            )
        if self.labels in (LabelsMode.NODE_FEATURE, LabelsMode.NODE) and not self.node_name:
            raise ConfigError(
                "labels",
                self.labels.value,
                "set node-name: these labels are published through the API server",
            )
        if self.metrics_address is not None:
            parse_address("metrics-address", self.metrics_address)


def startup_options(values: OptionValues) -> StartupOptions:
    """Raises ConfigError, which names the flag or the variable."""
    options = OptionReader(values)
    try:
        return StartupOptions(
            config_file=options.path("config-file"),
            config_dir=options.path("config-file-srcdir"),
            node_name=options.text("node-name", "") or None,
            node_label=options.text("node-label", NODE_LABEL),
            default_config=options.text("default-config", ""),
            fallbacks=options.choices("fallback-strategies", Fallback) or (),
            kubeconfig=options.path("kubeconfig"),
            metrics_address=options.text("metrics-address", "") or None,
            labels=options.choice("labels", LabelsMode.OFF),
            pod_name=options.text("pod-name", ""),
        )
    except ConfigError as error:
        raise with_source(error, values) from error
