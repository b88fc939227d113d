"""From what a command line says to a running agent: the same way for every entry point."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from gpuslice.cli.outcome import exit_with_message
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.load import load_settings
from gpuslice.config.option_values import OptionReader, OptionValues, collect_option_values
from gpuslice.config.settings import Settings
from gpuslice.config.startup_options import StartupOptions, startup_options
from gpuslice.telemetry.logs import LogFormat, LogLevel, configure_logs


def run_agent_command(flags: Mapping[str, str]) -> None:
    """`gpuslice agent`, which cuts memory until the configuration says otherwise."""
    run_with_flags("gpuslice agent", flags, Settings())


def run_with_flags(program: str, flags: Mapping[str, str], defaults: Settings) -> None:
    """`flags`: text by the name of its option. Variables fill what they leave open."""
    # Until the agent handles it: who asks for a reload now gets it, as nothing was read yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    given = collect_option_values(flags, os.environ, OPTIONS)
    with exit_with_message(program):
        said = OptionReader(given)
        configure_logs(
            said.choice("log-level", LogLevel.INFO), said.choice("log-format", LogFormat.TEXT)
        )
        run(given, defaults, startup_options(given))


def run(given: OptionValues, defaults: Settings, options: StartupOptions) -> None:
    # Imported here: gRPC's core reads what configure_logs has set.
    from gpuslice.agent.daemon import run_agent

    run_agent(lambda path: load_settings(given, defaults, path), options)
