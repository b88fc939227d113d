"""The `gpuslice` command.

An agent lives for months on every node. Started plainly, it does without the memory and the time
of what reads command lines for people.
"""

from __future__ import annotations

import sys

from gpuslice.cli.agent import run_agent_command
from gpuslice.cli.plain import plain_flags
from gpuslice.config.agent_options import OPTIONS


def main() -> None:
    flags = plain_flags(OPTIONS, sys.argv[2:]) if sys.argv[1:2] == ["agent"] else None
    if flags is not None:
        run_agent_command(flags)
        return
    from gpuslice.cli.commands import app

    app()
