"""`gpuslice labels`, and the same with the command line of NVIDIA's `gpu-feature-discovery`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.cli.daemon_program import (
    DaemonProgram,
    read_flags,
    read_option_values,
    running_daemon,
)
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.option_values import (
    OptionReader,
    OptionValue,
    OptionValues,
    collect_option_values,
)
from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.config.startup_options import LabelsMode
from gpuslice.labels.label_options import (
    GFD_GROUPS,
    LABELS_GROUPS,
    LabelTarget,
    label_settings,
    label_target,
)
from gpuslice.labels.publishers import (
    AsNodeFeature,
    NodeLabels,
    OnNode,
    Publisher,
    ToFile,
    ToStream,
)
from gpuslice.slicing.rules import Rules
from gpuslice.telemetry.logs import Logger

if TYPE_CHECKING:
    from gpuslice.cluster.client import ApiServer

log = Logger(__name__)

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
LABELS_DEFAULTS = Settings(containers=_ANY_MPS_ROOT)
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
        asyncio.run(_serve(values, defaults))


async def _serve(values: OptionValues, defaults: Settings) -> None:
    from gpuslice.labels.service import LabelService

    config_file = OptionReader(values).path("config-file")

    def load() -> Settings:
        loaded = load_settings(values, defaults, config_file)
        for warning in loaded.warnings:
            log.warning(warning)
        return replace(loaded.settings, labels=label_settings(loaded.settings.labels, values))

    publishers = _Publishers(label_target(values))
    try:
        await LabelService(load, publishers.get).run()
    finally:
        await publishers.close()


class _Publishers:
    """Connects to the API server only if labels are published there."""

    def __init__(self, target: LabelTarget) -> None:
        self._target = target
        self._server: ApiServer | None = None

    def get(self, settings: Settings) -> Publisher:
        """Raises ConfigError if the labels cannot be published with these settings."""
        target = self._target
        match target.mode_for(settings.labels):
            case LabelsMode.NODE_FEATURE:
                return AsNodeFeature(
                    self._api(), target.node_name, target.namespace, target.pod_name
                )
            case LabelsMode.NODE:
                return OnNode(self._api(), target.node_name)
            case _:
                path = settings.labels.output_file
                return ToFile(Path(path)) if path else ToStream(sys.stdout)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    def _api(self) -> NodeLabels:
        from gpuslice.cluster.client import connect
        from gpuslice.cluster.errors import ClusterError
        from gpuslice.cluster.labels import ClusterLabels

        kubeconfig = self._target.kubeconfig
        if self._server is None:
            try:
                self._server = connect(kubeconfig)
            except ClusterError as error:
                raise ConfigError("kubeconfig", str(kubeconfig or ""), str(error)) from error
        return ClusterLabels(self._server)
