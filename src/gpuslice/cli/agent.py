"""`gpuslice agent`, and the agent for drop-in programs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpuslice.cli.daemon_program import DaemonProgram, read_option_values, running_daemon
from gpuslice.config.agent_options import OPTION_GROUPS
from gpuslice.config.load import load_settings
from gpuslice.config.option_values import OptionValues
from gpuslice.config.settings import Settings
from gpuslice.config.startup_options import StartupOptions, startup_options
from gpuslice.config.timing import read_timing
from gpuslice.slicing.rules import MemoryRule, Rules

AGENT = DaemonProgram(
    "gpuslice agent",
    "Advertise the GPUs of this node to the kubelet.",
    OPTION_GROUPS,
    details=(
        "A GPU can be advertised as slices of memory, as replicas, as MIG devices or as a whole.",
        "Without any option, the memory of all GPUs is advertised.",
        "SIGHUP reloads the settings and scans for GPUs again. SIGQUIT prints all stacks.",
    ),
    is_drop_in=False,
)
# Slices reach their limits, also on a full GPU.
AGENT_DEFAULTS = Settings(rules=Rules(memory=MemoryRule(reserve_mib=None)))


def run_agent_command(args: Sequence[str]) -> None:
    run_agent_program(AGENT, args, AGENT_DEFAULTS)


def run_agent_program(program: DaemonProgram, args: Sequence[str], defaults: Settings) -> None:
    values = read_option_values(program, args)
    with running_daemon(program, values):
        run_agent_with(values, defaults, startup_options(values))


def run_agent_with(values: OptionValues, defaults: Settings, options: StartupOptions) -> None:
    """Call it in `running_daemon`."""
    from gpuslice.programs.agent.daemon import run_agent

    timing = read_timing(os.environ)
    run_agent(lambda path: load_settings(values, defaults, path), options, timing)
