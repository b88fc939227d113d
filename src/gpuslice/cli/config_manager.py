"""`config-manager`: the sidecar that charts for NVIDIA's plugin start beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuslice.cli.command_line import given_flags
from gpuslice.cli.goflags import flags_for, usage
from gpuslice.cli.outcome import exit_with_message
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.option_values import OptionReader, collect_option_values
from gpuslice.config.startup_options import startup_options
from gpuslice.telemetry.logs import configure_logs

PROGRAM = "config-manager"
_SHARED = frozenset(
    {
        "kubeconfig",
        "node-name",
        "node-label",
        "config-file-srcdir",
        "default-config",
        "fallback-strategies",
    }
)
_OWN = (
    Option("oneshot", "Link once and exit.", "false", ("ONESHOT",), OptionKind.SWITCH),
    Option("config-file-dst", "The link to keep.", "", ("CONFIG_FILE_DST",)),
    Option(
        "send-signal", "Tell a process of a change.", "true", ("SEND_SIGNAL",), OptionKind.SWITCH
    ),
    Option("signal", "Number of the signal.", "1", ("SIGNAL",)),
    Option(
        "process-to-signal",
        "First word of the command line of that process.",
        "nvidia-device-plugin",
        ("PROCESS_TO_SIGNAL",),
    ),
)
MANAGER_OPTIONS = (*(option for option in OPTIONS if option.name in _SHARED), *_OWN)
FLAGS = flags_for(MANAGER_OPTIONS)


def main() -> None:
    run(given_flags(PROGRAM, FLAGS, sys.argv[1:], lambda: usage(PROGRAM, FLAGS)))


def run(flags: Mapping[str, str]) -> None:
    from gpuslice.agent.config_link import LinkOptions, keep_link

    given = collect_option_values(flags, os.environ, MANAGER_OPTIONS)
    said = OptionReader(given)
    with exit_with_message(PROGRAM):
        configure_logs()
        options = startup_options(given)
        link = said.text("config-file-dst", "")
        needed = {
            "node-name": options.node_name,
            "node-label": options.node_label,
            "config-file-srcdir": options.config_dir,
            "config-file-dst": link,
        }
        for name, value in needed.items():
            if not value:
                raise ConfigError(name, "", "it must be given")
        process = said.text("process-to-signal", "nvidia-device-plugin")
        asyncio.run(
            keep_link(
                options,
                LinkOptions(
                    Path(link),
                    oneshot=said.switch("oneshot", False),
                    process=process if said.switch("send-signal", True) else None,
                    signal=_signal(said),
                ),
            )
        )


def _signal(said: OptionReader) -> int:
    text = said.text("signal", "1")
    if not text.isdecimal() or not 0 < int(text) < 65:
        raise ConfigError("signal", text, "use the number of a signal, as 1 for SIGHUP")
    return int(text)
