"""`nvidia-device-plugin`: the agent with the command line of NVIDIA's device plugin."""

from __future__ import annotations

import sys

from gpuslice.cli.agent import run_agent_program
from gpuslice.cli.daemon_program import DaemonProgram
from gpuslice.config.agent_options import OPTION_GROUPS
from gpuslice.config.memory_limit_settings import MemoryLimitMode, MemoryLimitSettings
from gpuslice.config.settings import Bind, Settings
from gpuslice.slicing.rules import Rules

PROGRAM = DaemonProgram(
    "nvidia-device-plugin",
    "Advertise the GPUs of this node to the kubelet, as NVIDIA's device plugin does.",
    OPTION_GROUPS,
    details=("Without any option, whole GPUs are advertised.",),
)
# Like NVIDIA's plugin, it waits on a node without GPUs, and its answers contain all limits.
DEFAULTS = Settings(
    rules=Rules(),
    wait_for_devices=True,
    bind=Bind.ENV,
    memory_limits=MemoryLimitSettings(MemoryLimitMode.OFF),
)


def main() -> None:
    run_agent_program(PROGRAM, sys.argv[1:], DEFAULTS)
