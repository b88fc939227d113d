"""The `gpuslice` command.

The daemons do not import Typer: they run on every node for months, and Typer costs memory and
startup time.
"""

from __future__ import annotations

import sys


def main() -> None:
    match sys.argv[1:]:
        case ["agent", *args]:
            from gpuslice.cli.agent import run_agent_command

            run_agent_command(args)
        case ["labels", *args]:
            from gpuslice.cli.labels import run_labels_command

            run_labels_command(args)
        case ["mps", *args]:
            from gpuslice.cli.mps_control_daemon import run_mps_command

            run_mps_command(args)
        case _:
            from gpuslice.cli.commands import app

            app()
