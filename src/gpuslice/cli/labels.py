"""`gpuslice labels`, and the same with the command line of NVIDIA's `gpu-feature-discovery`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuslice.cli.agent import AGENT_DEFAULTS
from gpuslice.cli.daemon_program import (
    DaemonProgram,
    read_flags,
    read_option_values,
    running_daemon,
)
from gpuslice.config.load import Loaded, load_settings
from gpuslice.config.option_values import (
    OptionReader,
    OptionValue,
    OptionValues,
    collect_option_values,
)
from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.config.startup_options import LabelsMode, StartupOptions
from gpuslice.config.timing import read_timing
from gpuslice.labels.label_options import (
    GFD_GROUPS,
    LABELS_GROUPS,
    label_settings,
    label_target,
)
from gpuslice.slicing.rules import Rules

LABELS = DaemonProgram(
    "gpuslice labels",
    "Publish labels for the GPUs of this node.",
    LABELS_GROUPS,
    details=(
        "Use the options of the agent of this node: the labels contain what it advertises.",
        "SIGHUP reloads the settings.",
    ),
    is_drop_in=False,
)
GPU_FEATURE_DISCOVERY = DaemonProgram(
    "gpu-feature-discovery",
    "Publish labels for the GPUs of this node, as NVIDIA's GPU feature discovery does.",
    GFD_GROUPS,
    details=("SIGHUP reloads the settings.",),
)
# sharing.mps requires an MPS root, but labels do not depend on it.
_ANY_MPS_ROOT = ContainerSettings(mps_root="/run/nvidia/mps")
LABELS_DEFAULTS = replace(AGENT_DEFAULTS, containers=_ANY_MPS_ROOT)
# Like nvidia-device-plugin, it assumes whole GPUs.
GFD_DEFAULTS = Settings(rules=Rules(), containers=_ANY_MPS_ROOT)


def main() -> None:
    """The entry point `gpu-feature-discovery`."""
    values = read_option_values(GPU_FEATURE_DISCOVERY, sys.argv[1:])
    _run(GPU_FEATURE_DISCOVERY, values, GFD_DEFAULTS)


def run_labels_command(args: Sequence[str]) -> None:
    flags = read_flags(LABELS, args)
    values = dict(collect_option_values(flags, os.environ, LABELS.options))
    if "output-file" in flags and "mode" not in values:
        values["mode"] = OptionValue(LabelsMode.FILE.value, "output-file")
    _run(LABELS, values, LABELS_DEFAULTS)


def _run(program: DaemonProgram, values: OptionValues, defaults: Settings) -> None:
    with running_daemon(program, values):
        from gpuslice.programs.feature_discovery import run_feature_discovery

        def load(config_file: Path | None) -> Loaded:
            loaded = load_settings(values, defaults, config_file)
            labels = label_settings(loaded.settings.labels, values)
            return replace(loaded, settings=replace(loaded.settings, labels=labels))

        options = StartupOptions(config_file=OptionReader(values).path("config-file"))
        timing = read_timing(os.environ)
        run_feature_discovery(load, options, label_target(values), timing)
