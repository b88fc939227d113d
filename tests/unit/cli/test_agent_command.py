"""`gpuslice agent` as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.cli.agent import AGENT
from gpuslice.cli.daemon_program import read_flags

PROGRAM = Path(sys.executable).parent / "gpuslice"


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--memory-unit", "256MiB", "--log-level=debug"],
        ["--no-fail-on-init-error", "--device-list-strategy=envvar"],
        ["--fail-on-init-error=false", "--pass-device-specs=1"],
    ],
)
def test_the_flags_of_a_daemon_set_are_accepted(args: list[str]) -> None:
    assert len(read_flags(AGENT, args)) == sum(arg.startswith("-") for arg in args)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["-h"], 0, "Usage: gpuslice agent"),
        (["--help"], 0, "Usage: gpuslice agent"),
        (["--help=true"], 0, "Usage: gpuslice agent"),
        (["--memory-unit"], 2, "flag needs an argument: -memory-unit"),
        (["--memory-unt", "1GiB"], 2, "-memory-unt (did you mean --memory-unit?)"),
        (["--gds-enabled=maybe"], 2, "invalid value 'maybe' for -gds-enabled: use true or false"),
        (["--gds-enabled="], 2, "invalid value '' for -gds-enabled: use true or false"),
        (["--gds-enabled", "false"], 2, "equals sign: --gds-enabled=false"),
        (["--no-gds-enabled=true"], 2, "-no-gds-enabled does not take a value"),
        (["x"], 2, "unexpected argument 'x'"),
    ],
)
def test_help_and_errors_of_the_command_line(args: list[str], status: int, message: str) -> None:
    done = subprocess.run(
        [PROGRAM, "agent", *args], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == status
    assert message in (done.stderr if status else done.stdout)
    assert (done.stdout if status else done.stderr) == ""


@pytest.mark.parametrize("command", ["agent", "labels"])
def test_help_does_not_load_typer(command: str) -> None:
    script = f"""
import sys
sys.argv = ["gpuslice", {command!r}, "--help"]
from gpuslice.cli.main import main
try:
    main()
except SystemExit:
    pass
print("typer" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("argv", [["gpuslice", "agent"], ["nvidia-device-plugin"]])
def test_an_agent_imports_only_what_it_uses(argv: list[str]) -> None:
    """Each of these modules takes a megabyte or more on every node."""
    entry = {"gpuslice": "main", "nvidia-device-plugin": "nvidia"}[argv[0]]
    script = f"""
import sys
sys.argv = {[*argv, "--kubelet-socket=relative"]!r}
from gpuslice.cli.{entry} import main
import gpuslice.programs.agent.daemon
try:
    main()
except SystemExit:
    pass
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    unused = {"typer", "pydantic", "rich", "yaml", "msgspec", "httpx2", "lightkube", "anyio"}
    unused |= {"prometheus_client", "gpuslice.cdi.node_specs", "gpuslice.cdi.document"}
    unused |= {"gpuslice.labels.labels"}
    assert "kubelet-socket" in done.stderr
    assert not unused.intersection(done.stdout.split())


@pytest.mark.parametrize("program", ["feature_discovery", "mps_daemons", "config_manager"])
def test_programs_that_are_no_device_plugin_do_not_import_grpc(program: str) -> None:
    script = f"import sys, gpuslice.programs.{program}; print('grpc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout == "False\n"
