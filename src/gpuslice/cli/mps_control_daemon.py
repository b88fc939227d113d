"""`mps-control-daemon`: MPS for replicas, behind the command line of NVIDIA's program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from gpuslice.cli.command_line import given_flags
from gpuslice.cli.goflags import flags_for, usage
from gpuslice.cli.outcome import exit_with_message
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.load import load_settings
from gpuslice.config.option_values import OptionReader, collect_option_values
from gpuslice.config.settings import ContainerSettings, Settings
from gpuslice.config.startup_options import startup_options
from gpuslice.slicing.rules import Rules
from gpuslice.telemetry.logs import LogFormat, LogLevel, configure_logs

PROGRAM = "mps-control-daemon"
MOUNT_SHM = "mount-shm"
# Charts do not tell it where the host has what it finds at /mps; only the plugin has to know.
DEFAULTS = Settings(
    rules=Rules(),
    containers=ContainerSettings(mps_root="/run/nvidia/mps"),
    wait_for_devices=True,
)
FLAGS = flags_for(OPTIONS)


def main() -> None:
    words = [word for word in sys.argv[1:] if word != MOUNT_SHM]
    flags = given_flags(PROGRAM, FLAGS, words, explain)
    if MOUNT_SHM in sys.argv[1:]:
        mount()
    else:
        run(flags)


def explain() -> str:
    return (
        f"{PROGRAM} [flags]     runs an MPS daemon for every resource of sharing.mps\n"
        f"{PROGRAM} {MOUNT_SHM}   mounts the memory that they share with containers\n\n"
        f"{usage(PROGRAM, FLAGS)}"
    )


def mount() -> None:
    from gpuslice.mps.shm import ShmError, mount_shm

    try:
        place = mount_shm()
    except ShmError as error:
        print(f"{PROGRAM} {MOUNT_SHM}: {error}", file=sys.stderr)
        sys.exit(1)
    said = f"mounted {place}" if place else "it is mounted already and stays, for its clients"
    print(f"{PROGRAM} {MOUNT_SHM}: {said}", file=sys.stderr)


def run(flags: Mapping[str, str]) -> None:
    # Until it is handled: who asks for a reload now gets it, as nothing was read yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    given = collect_option_values(flags, os.environ, OPTIONS)
    with exit_with_message(PROGRAM):
        said = OptionReader(given)
        configure_logs(
            said.choice("log-level", LogLevel.INFO), said.choice("log-format", LogFormat.TEXT)
        )
        # Imported here: gRPC's core reads what configure_logs has set.
        from gpuslice.agent.mps_daemons import keep_mps_daemons

        keep_mps_daemons(lambda path: load_settings(given, DEFAULTS, path), startup_options(given))
