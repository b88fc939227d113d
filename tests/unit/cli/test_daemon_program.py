"""What every daemon does at startup."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from gpuslice.cli import gpushare, nvidia
from gpuslice.cli.agent import AGENT
from gpuslice.cli.daemon_program import read_flags, read_option_values, running_daemon
from gpuslice.cli.labels import GPU_FEATURE_DISCOVERY, LABELS
from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_values import OptionValue
from gpuslice.node.errors import ProgramError


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores what a daemon changes for its whole process."""
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    handlers, level = logging.root.handlers[:], logging.root.level
    on_sighup = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, on_sighup)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_values_come_from_flags_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIG_STRATEGY", "mixed")
    monkeypatch.setenv("NODE_NAME", "n1")
    values = read_option_values(AGENT, ["--node-name=n2", "--no-gds-enabled"])
    assert values["mig-strategy"] == OptionValue("mixed", "MIG_STRATEGY")
    assert values["node-name"] == OptionValue("n2", "node-name")
    assert values["gds-enabled"] == OptionValue("false", "gds-enabled")


def test_no_flags_are_no_values_even_with_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIG_STRATEGY", "mixed")
    assert read_flags(AGENT, []) == {}


@pytest.mark.parametrize(
    "args", [["-o", "/f"], ["-o=/f"], ["--output", "/f"], ["--output-file=/f"]], ids=" ".join
)
def test_labels_have_short_names_for_the_output_file(args: list[str]) -> None:
    assert read_flags(LABELS, args) == {"output-file": "/f"}
    assert read_flags(GPU_FEATURE_DISCOVERY, args) == {"output-file": "/f"}


@pytest.mark.parametrize("flag", ["-h", "--h", "-help", "--help", "--help=true"])
def test_help_is_printed(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as exited:
        read_flags(AGENT, ["--gds-enabled", flag])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: gpuslice agent [flags]\n")


@pytest.mark.parametrize("flag", ["-v", "--v", "-version", "--version"])
def test_a_drop_in_program_prints_its_version(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as exited:
        read_flags(nvidia.PROGRAM, [flag])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"nvidia-device-plugin of gpuslice {version('gpuslice')}\n"


def test_a_flag_v_of_the_program_is_not_the_version() -> None:
    assert read_flags(gpushare.PROGRAM, ["-v=5"]) == {"v": "5"}


def test_an_invalid_command_line_ends_the_program_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exited:
        read_flags(nvidia.PROGRAM, ["--no-gds-enabled"])
    assert exited.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("nvidia-device-plugin: flag provided but not defined: -no-gds-enabled")
    assert line.endswith("nvidia-device-plugin --help")


@pytest.mark.parametrize(
    "error",
    [ProgramError(Code.NO_GPUS, "no GPU"), ConfigError("unit", "x", "use GiB")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_ends_the_program_with_1_and_one_line(
    capsys: pytest.CaptureFixture[str], error: ProgramError | ConfigError
) -> None:
    with pytest.raises(SystemExit) as exited, running_daemon(AGENT, {}):
        raise error
    assert exited.value.code == 1
    assert capsys.readouterr().err == f"gpuslice agent: {error.code}: {error}\n"


def test_an_unexpected_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), running_daemon(AGENT, {}):
        raise ZeroDivisionError


def test_an_invalid_log_option_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"log-level": OptionValue("loud", "GPUSLICE_LOG_LEVEL")}
    with pytest.raises(SystemExit) as exited, running_daemon(AGENT, values):
        raise AssertionError
    assert exited.value.code == 1
    assert "GPUSLICE_LOG_LEVEL: 'loud' is not valid" in capsys.readouterr().err


def test_sighup_does_not_end_a_daemon_that_is_about_to_handle_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with running_daemon(AGENT, {}, reloads=False):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    with running_daemon(AGENT, {}):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
