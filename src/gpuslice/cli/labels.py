"""`gpuslice labels`, and `gpu-feature-discovery`: the same behind NVIDIA's command line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.cli.command_line import given_flags
from gpuslice.cli.goflags import flags_for, usage
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
from gpuslice.labels.errors import LabelsError
from gpuslice.labels.label_options import (
    LABELS_OPTIONS,
    NVIDIA_OPTIONS,
    Target,
    target_of,
    with_flags,
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
from gpuslice.telemetry.logs import LogFormat, Logger, LogLevel, configure_logs

if TYPE_CHECKING:
    from gpuslice.cluster.client import ApiServer

log = Logger(__name__)

PROGRAM = "gpu-feature-discovery"
# Labels tell of MPS wherever its daemons have their pipes.
_ANYWHERE = ContainerSettings(mps_root="/run/nvidia/mps")
DEFAULTS = Settings(containers=_ANYWHERE)
# Whole GPUs, until the configuration says otherwise.
NVIDIA_DEFAULTS = Settings(rules=Rules(), containers=_ANYWHERE)
FLAGS = flags_for(NVIDIA_OPTIONS)


def main() -> None:
    """The entry point `gpu-feature-discovery`."""
    flags = given_flags(PROGRAM, FLAGS, sys.argv[1:], lambda: usage(PROGRAM, FLAGS))
    given = collect_option_values(flags, os.environ, NVIDIA_OPTIONS)
    _run(PROGRAM, given, NVIDIA_DEFAULTS)


def run_labels(flags: Mapping[str, str]) -> None:
    """`gpuslice labels`. Whoever names a file wants one."""
    given = dict(collect_option_values(flags, os.environ, LABELS_OPTIONS))
    if "output-file" in flags and "mode" not in given:
        given["mode"] = OptionValue(LabelsMode.FILE.value, "output-file")
    _run("gpuslice labels", given, DEFAULTS)


def _run(program: str, given: OptionValues, defaults: Settings) -> None:
    try:
        said = OptionReader(given)
        configure_logs(
            said.choice("log-level", LogLevel.INFO), said.choice("log-format", LogFormat.TEXT)
        )
        asyncio.run(_serve(given, defaults))
    except (ConfigError, LabelsError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(1)


async def _serve(given: OptionValues, defaults: Settings) -> None:
    from gpuslice.labels.service import LabelService

    path = OptionReader(given).text("config-file", "")

    def load() -> Settings:
        loaded = load_settings(given, defaults, Path(path) if path else None)
        for warning in loaded.warnings:
            log.warning(warning)
        return replace(loaded.settings, labels=with_flags(loaded.settings.labels, given))

    publishers = _Publishers(target_of(given))
    try:
        await LabelService(load, publishers.by).run()
    finally:
        await publishers.close()


class _Publishers:
    """Connects to the API server as soon as labels are to go there."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._server: ApiServer | None = None

    def by(self, settings: Settings) -> Publisher:
        """Raises ConfigError if the labels cannot go where they are to go."""
        target = self._target
        match target.mode_with(settings.labels):
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
