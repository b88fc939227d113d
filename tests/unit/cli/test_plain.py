"""The agent's command line without Typer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gpuslice.cli.plain import plain_flags
from gpuslice.cli.switches import SwitchCommand
from gpuslice.cli.typed import takes
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.option_definition import OptionKind

PROGRAM = Path(sys.executable).parent / "gpuslice"

names = st.sampled_from(
    [
        prefix + name
        for option in OPTIONS
        for name in (option.name, *option.aliases)
        for prefix in (("--", "--no-") if option.kind is OptionKind.SWITCH else ("--",))
    ]
)
values = st.sampled_from(["", "x", "a,b", "a=b", "true", "F", "0", "-x", "--help", "é "])
words = names | values | st.builds("{}={}".format, names, values)


def by_typer(args: list[str]) -> Mapping[str, str] | None:
    heard: list[Mapping[str, str]] = []
    command = typer.Typer()

    @command.command(cls=SwitchCommand)
    @takes(OPTIONS)
    def agent(flags: Mapping[str, str]) -> None:
        heard.append(flags)

    CliRunner().invoke(command, args)
    return heard[0] if heard else None


@pytest.mark.parametrize("reader", [by_typer, lambda args: plain_flags(OPTIONS, args)])
@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((word, "true") for word in ("1", "t", "T", "true", "TRUE", "True")),
        *((word, "false") for word in ("0", "f", "F", "false", "FALSE", "False")),
    ],
)
def test_a_switch_has_a_value_after_an_equals_sign_as_go_has_it(
    reader: Callable[[list[str]], Mapping[str, str] | None], word: str, value: str
) -> None:
    assert reader([f"--gds-enabled={word}"]) == {"gds-enabled": value}
    assert reader(["--gds-enabled", f"--gds-enabled={word}"]) == {"gds-enabled": value}


@settings(max_examples=60, deadline=None)
@given(st.lists(words, max_size=6))
def test_what_is_plain_is_read_as_typer_reads_it(args: list[str]) -> None:
    flags = plain_flags(OPTIONS, args)
    if flags is not None:
        assert flags == by_typer(args)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--memory-unit", "256MiB", "--log-level=debug"],
        ["--no-fail-on-init-error", "--device-list-strategy=envvar"],
        ["--fail-on-init-error=false", "--pass-device-specs=1"],
    ],
)
def test_what_a_daemon_set_says_is_plain(args: list[str]) -> None:
    assert plain_flags(OPTIONS, args) is not None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["-h"], "Usage: gpuslice agent"),
        (["--help"], "Usage: gpuslice agent"),
        (["--memory-unit"], "'--memory-unit' requires an argument"),
        (["--memory-unt", "1GiB"], "No such option: --memory-unt"),
        (["--gds-enabled=maybe"], "'--gds-enabled': 'maybe': use true or false"),
        (["--gds-enabled="], "'--gds-enabled': '': use true or false"),
        (["--gds-enabled", "false"], "equals sign: --gds-enabled=false"),
        (["--no-gds-enabled=true"], "'--no-gds-enabled' does not take a value"),
        (["--help=true"], "'--help' does not take a value"),
        (["x"], "unexpected extra argument"),
    ],
)
def test_help_and_mistakes_are_left_to_typer(args: list[str], told: str) -> None:
    assert plain_flags(OPTIONS, args) is None
    done = subprocess.run(
        [PROGRAM, "agent", *args], capture_output=True, text=True, check=False, timeout=180
    )
    assert told in done.stdout + done.stderr


@pytest.mark.parametrize("argv", [["gpuslice", "agent"], ["nvidia-device-plugin"]])
def test_an_agent_starts_without_what_it_does_not_use(argv: list[str]) -> None:
    """Each of these costs every node a megabyte or more."""
    entry = {"gpuslice": "main", "nvidia-device-plugin": "nvidia"}[argv[0]]
    script = f"""
import sys
sys.argv = {[*argv, "--kubelet-socket=relative"]!r}
from gpuslice.cli.{entry} import main
import gpuslice.agent.daemon
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
    unused |= {"prometheus_client", "gpuslice.inject.cdi", "gpuslice.labels.labels"}
    assert "kubelet-socket" in done.stderr
    assert not unused.intersection(done.stdout.split())
