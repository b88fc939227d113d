"""Options that are read only at startup."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.config_choice import Fallback
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.startup_options import LabelsMode, StartupOptions, startup_options


def options(**environment: str) -> StartupOptions:
    return startup_options(collect_option_values({}, environment, OPTIONS))


def test_every_option_has_a_default() -> None:
    assert options() == StartupOptions()
    assert StartupOptions().node_label == "nvidia.com/device-plugin.config"


def test_every_variable_is_read() -> None:
    assert options(
        NODE_NAME="node-1",
        POD_NAME="agent-x",
        NODE_LABEL="example.com/config",
        CONFIG_FILE_SRCDIR="/available-configs",
        DEFAULT_CONFIG="any",
        FALLBACK_STRATEGIES="named,single,empty",
        KUBECONFIG="/kube",
        GPUSLICE_METRICS_ADDRESS=":9400",
        GPUSLICE_LABELS="node-feature",
    ) == StartupOptions(
        config_dir=Path("/available-configs"),
        node_name="node-1",
        pod_name="agent-x",
        node_label="example.com/config",
        default_config="any",
        fallbacks=(Fallback.NAMED, Fallback.SINGLE, Fallback.EMPTY),
        kubeconfig=Path("/kube"),
        metrics_address=":9400",
        labels=LabelsMode.NODE_FEATURE,
    )
    assert options(CONFIG_FILE="/c.yaml").config_file == Path("/c.yaml")


def test_a_flag_overrides_its_variable() -> None:
    given = collect_option_values(
        {"node-name": "a"}, {"NODE_NAME": "b", "CONFIG_FILE": "/c"}, OPTIONS
    )
    assert startup_options(given).node_name == "a"
    assert startup_options(given).config_file == Path("/c")


@pytest.mark.parametrize("address", [":9400", "0.0.0.0:9400", "[::1]:9400", "localhost:0"])
def test_a_metrics_address_is_a_host_and_a_port(address: str) -> None:
    assert options(GPUSLICE_METRICS_ADDRESS=address).metrics_address == address


@pytest.mark.parametrize(
    ("environment", "because"),
    [
        ({"GPUSLICE_METRICS_ADDRESS": "9400"}, "^GPUSLICE_METRICS_ADDRESS: '9400' .*use host:port"),
        (
            {"GPUSLICE_METRICS_ADDRESS": ":99999"},
            "^GPUSLICE_METRICS_ADDRESS: ':99999' .*use host:port",
        ),
        ({"GPUSLICE_METRICS_ADDRESS": "::1:80"}, "^GPUSLICE_METRICS_ADDRESS"),
        ({"FALLBACK_STRATEGIES": "first"}, "FALLBACK_STRATEGIES: 'first' .*named, single, empty"),
        ({"GPUSLICE_LABELS": "yes"}, "GPUSLICE_LABELS: 'yes' .*off, file, node-feature, node"),
        ({"GPUSLICE_LABELS": "node"}, "^GPUSLICE_LABELS: 'node' .*set node-name"),
        (
            {"CONFIG_FILE": "/c", "CONFIG_FILE_SRCDIR": "/d"},
            r"^CONFIG_FILE: '/c' .*config-file-srcdir is set to /d; set only one",
        ),
    ],
)
def test_invalid_options_are_rejected(environment: dict[str, str], because: str) -> None:
    with pytest.raises(ConfigError, match=because):
        options(**environment)


def test_an_invalid_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^metrics-address: '9400' .*use host:port"):
        startup_options(collect_option_values({"metrics-address": "9400"}, {}, OPTIONS))


def test_the_label_that_chooses_the_configuration_is_required() -> None:
    with pytest.raises(ConfigError, match=r"node-label: '' .*set the label"):
        StartupOptions(config_dir=Path("/d"), node_name="n", node_label="")
