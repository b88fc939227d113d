"""The command line of NVIDIA's device plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpuslice.cli.daemon_program import read_flags
from gpuslice.cli.nvidia import PROGRAM
from gpuslice.config.agent_options import OPTIONS

BINARY = Path(sys.executable).parent / "nvidia-device-plugin"


def test_the_command_line_of_the_chart_is_accepted() -> None:
    args = "--mig-strategy=mixed --pass-device-specs --device-list-strategy=envvar,cdi-cri"
    assert read_flags(PROGRAM, args.split()) == {
        "mig-strategy": "mixed",
        "pass-device-specs": "true",
        "device-list-strategy": "envvar,cdi-cri",
    }


def test_it_has_every_option_of_the_agent() -> None:
    assert PROGRAM.options == OPTIONS


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BINARY, *args], capture_output=True, text=True, check=False, env={})


def test_help_and_version_are_printed() -> None:
    assert run("--help").stdout.startswith("Usage: nvidia-device-plugin")
    assert re.match(r"nvidia-device-plugin of gpuslice \d", run("--version").stdout)


def test_an_unknown_flag_ends_the_program_with_2_and_one_line() -> None:
    done = run("--speed")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("nvidia-device-plugin: flag provided but not defined: -speed")
