"""A program accepts the remedies of its own error messages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
COMMANDS = [["gpuslice", "labels"], ["gpu-feature-discovery"]]


def run(command: list[str], *args: str) -> subprocess.CompletedProcess[str]:
    """On a node without a driver, where these errors are common."""
    argv = [str(BIN / command[0]), *command[1:], "--machine-type-file=", *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env={})


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_labels_without_a_node_name_or_a_driver_name_flags_that_work(
    command: list[str],
) -> None:
    args = ["--oneshot=true"]
    for remedy in (
        ["--use-node-feature-api=false", "--output-file="],
        ["--fail-on-init-error=false"],
    ):
        failed = run(command, *args)
        assert failed.returncode == 1
        found = re.findall(r"--[a-z-]+=(?:false)?", failed.stderr)
        assert found == remedy
        args += found
    done = run(command, *args)
    assert done.returncode == 0
    assert "nvidia.com/gfd.timestamp=" in done.stdout


def test_an_agent_names_the_file_and_the_key_of_an_invalid_value(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("flags: {mpsRoot: mps}")
    argv = [str(BIN / "gpuslice"), "agent", f"--config-file={file}", "--fail-on-init-error=false"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env={})
    assert done.returncode == 1
    assert (
        f"gpuslice agent: ConfigurationInvalid: {file}: flags.mpsRoot: 'mps' is not valid"
        in done.stderr
    )
