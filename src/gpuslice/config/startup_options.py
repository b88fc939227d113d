"""How an agent finds its settings and speaks of itself: fixed when it starts, never reloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuslice.config.config_choice import Fallback
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_values import OptionReader, OptionValues, with_source

NODE_LABEL = "nvidia.com/device-plugin.config"

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]*):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535


class LabelsMode(Enum):
    """Where the agent publishes what it knows of the GPUs."""

    OFF = "off"
    FILE = "file"  # for node-feature-discovery, in its features.d
    NODE_FEATURE = "node-feature"  # as a NodeFeature object
    NODE = "node"  # on the Node itself


@dataclass(frozen=True, slots=True)
class StartupOptions:
    # The only configuration there is.
    config_file: Path | None = None
    # One of several configurations, by the node's label.
    config_dir: Path | None = None
    node_name: str | None = None
    node_label: str = NODE_LABEL
    default_config: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    # None: the one of the pod's own service account.
    kubeconfig: Path | None = None
    # host:port; None: no metrics.
    metrics_address: str | None = None
    labels: LabelsMode = LabelsMode.OFF
    # The agent's own, which owns the labels it publishes as an object.
    pod_name: str = ""

    def __post_init__(self) -> None:
        if self.config_file is not None and self.config_dir is not None:
            raise ConfigError(
                "config-file",
                str(self.config_file),
                f"the configuration is chosen from {self.config_dir} (config-file-srcdir); "
                "give only one of the two",
            )
        if self.config_dir is not None and self.node_name and not self.node_label:
            raise ConfigError(
                "node-label", "", f"name the label that chooses the configuration, as {NODE_LABEL}"
            )
        if self.labels in (LabelsMode.NODE_FEATURE, LabelsMode.NODE) and not self.node_name:
            raise ConfigError(
                "labels", self.labels.value, "give node-name too: these labels go to the API server"
            )
        _check_address(self.metrics_address)


def startup_options(given: OptionValues) -> StartupOptions:
    """Raises ConfigError that names the flag or the variable."""
    try:
        return _options(OptionReader(given))
    except ConfigError as error:
        raise with_source(error, given) from error


def _options(said: OptionReader) -> StartupOptions:
    return StartupOptions(
        config_file=_path(said, "config-file"),
        config_dir=_path(said, "config-file-srcdir"),
        node_name=said.text("node-name", "") or None,
        node_label=said.text("node-label", NODE_LABEL),
        default_config=said.text("default-config", ""),
        fallbacks=said.choices("fallback-strategies", Fallback) or (),
        kubeconfig=_path(said, "kubeconfig"),
        metrics_address=said.text("metrics-address", "") or None,
        labels=said.choice("labels", LabelsMode.OFF),
        pod_name=said.text("pod-name", ""),
    )


def _path(said: OptionReader, name: str) -> Path | None:
    text = said.text(name, "")
    return Path(text) if text else None


def _check_address(address: str | None) -> None:
    if address is None:
        return
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > _HIGHEST_PORT:
        raise ConfigError(
            "metrics-address", address, "use host:port, as 0.0.0.0:9400, or :9400 for every address"
        )
