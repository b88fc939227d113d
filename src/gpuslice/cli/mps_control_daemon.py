"""`gpuslice mps`, and `mps-control-daemon` with the command line of NVIDIA's program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from gpuslice.cli.agent import AGENT_DEFAULTS
from gpuslice.cli.daemon_program import (
    DaemonProgram,
    exit_with_message,
    read_flags,
    read_option_values,
    running_daemon,
)
from gpuslice.config.agent_options import OPTION_GROUPS
from gpuslice.config.load import load_settings
from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.config.startup_options import startup_options
from gpuslice.config.timing import read_timing
from gpuslice.slicing.rules import Rules

MOUNT_SHM = "mount-shm"
PROGRAM = DaemonProgram(
    "mps-control-daemon",
    "Run an MPS daemon for every resource of sharing.mps.",
    OPTION_GROUPS,
    details=(
        f"{MOUNT_SHM} mounts the shared memory of NVIDIA's layout, which daemons do not use.",
    ),
    usage=("[flags]", MOUNT_SHM),
)
MPS = DaemonProgram(
    "gpuslice mps",
    "Run the MPS daemons that limit containers.",
    OPTION_GROUPS,
    details=(
        "Use the settings of gpuslice agent. Memory slices have daemons with mps-mode managed.",
        "The host's MPS root (mps-root) must be mounted at /mps.",
    ),
    is_drop_in=False,
)
# NVIDIA's chart does not set the MPS root for this program, which finds it at /mps. Only the plugin
# needs the path on the host.
_ROOT = ContainerSettings(mps_root="/run/nvidia/mps")
DEFAULTS = Settings(rules=Rules(), containers=_ROOT, wait_for_devices=True)
# What the agent slices has daemons.
MPS_DEFAULTS = replace(AGENT_DEFAULTS, containers=_ROOT, wait_for_devices=True)


def main() -> None:
    args = [arg for arg in sys.argv[1:] if arg != MOUNT_SHM]
    if MOUNT_SHM in sys.argv[1:]:
        read_flags(PROGRAM, args)
        mount()
    else:
        _run(PROGRAM, args, DEFAULTS)


def run_mps_command(args: Sequence[str]) -> None:
    _run(MPS, args, MPS_DEFAULTS)


def mount() -> None:
    from gpuslice.mps.shm import ShmError, mount_shm

    command = f"{PROGRAM.name} {MOUNT_SHM}"
    with exit_with_message(command, ShmError):
        path = mount_shm()
    result = f"mounted {path}" if path else "already mounted, and kept for its clients"
    print(f"{command}: {result}", file=sys.stderr)


def _run(program: DaemonProgram, args: Sequence[str], defaults: Settings) -> None:
    values = read_option_values(program, args)
    with running_daemon(program, values):
        from gpuslice.programs.mps_daemons import run_mps_daemons

        run_mps_daemons(
            lambda path: load_settings(values, defaults, path),
            startup_options(values),
            read_timing(os.environ),
        )
