"""`config-manager`: the sidecar in charts for NVIDIA's device plugin."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.cli.daemon_program import DaemonProgram, read_option_values, running_daemon
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option, OptionGroup, OptionKind, options_in
from gpuslice.config.option_values import OptionReader
from gpuslice.config.startup_options import StartupOptions, startup_options
from gpuslice.config.timing import read_timing

if TYPE_CHECKING:
    from gpuslice.programs.config_manager import LinkOptions

_AGENT_OPTIONS = frozenset(
    {
        "kubeconfig",
        "node-name",
        "node-label",
        "config-file-srcdir",
        "default-config",
        "fallback-strategies",
    }
)
_PLUGIN = "nvidia-device-plugin"
_GROUPS = (
    OptionGroup(
        "Configuration", tuple(option for option in OPTIONS if option.name in _AGENT_OPTIONS)
    ),
    OptionGroup(
        "Symbolic link and signal",
        (
            Option(
                "config-file-dst",
                "Symbolic link to the configuration of this node.",
                "",
                ("CONFIG_FILE_DST",),
            ),
            Option(
                "oneshot",
                "Create the link once and exit.",
                "false",
                ("ONESHOT",),
                OptionKind.SWITCH,
            ),
            Option(
                "send-signal",
                "Send a signal to a process after a change.",
                "true",
                ("SEND_SIGNAL",),
                OptionKind.SWITCH,
            ),
            Option("signal", "Number of the signal.", "1", ("SIGNAL",)),
            Option(
                "process-to-signal",
                "First word of the command line of the process.",
                _PLUGIN,
                ("PROCESS_TO_SIGNAL",),
            ),
        ),
    ),
)
MANAGER_OPTIONS = options_in(_GROUPS)
PROGRAM = DaemonProgram(
    "config-manager",
    "Keep a symbolic link to the configuration that the label of this node chooses.",
    _GROUPS,
)


def main() -> None:
    values = read_option_values(PROGRAM, sys.argv[1:])
    with running_daemon(PROGRAM, values, reloads=False):
        from gpuslice.programs.config_manager import keep_link

        options = startup_options(values)
        link = _link_options(OptionReader(values), options)
        asyncio.run(keep_link(options, link, read_timing(os.environ)))


def _link_options(values: OptionReader, options: StartupOptions) -> LinkOptions:
    from gpuslice.programs.config_manager import LinkOptions

    link = values.text("config-file-dst", "")
    required = {
        "node-name": options.node_name,
        "node-label": options.node_label,
        "config-file-srcdir": options.config_dir,
        "config-file-dst": link,
    }
    for name, value in required.items():
        if not value:
            raise ConfigError(name, "", "it is required")
    process = values.text("process-to-signal", _PLUGIN)
    return LinkOptions(
        Path(link),
        oneshot=values.switch("oneshot", False),
        process=process if values.switch("send-signal", True) else None,
        signal=_signal(values),
    )


def _signal(values: OptionReader) -> int:
    text = values.text("signal", "1")
    if not text.isdecimal() or not 0 < int(text) < 65:
        raise ConfigError("signal", text, "use the number of a signal, for example 1 for SIGHUP")
    return int(text)
