"""Commands to a daemon that answers one control program at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuslice.mps.control import PROGRAM, ControlClient, MpsUnavailable

# Answers as NVIDIA's program does, but another program takes its connection the first times.
SCRIPT = """#!/bin/sh
echo >> {runs}
if [ $(wc -l < {runs}) -le {dropped} ]; then {how}; fi
while read -r line; do
    case "$line" in
        get_default_active*) echo 50.0 ;;
        get_default_device*) echo 14G ;;
    esac
done
"""
REFUSED = "echo Cannot send command to MPS control daemon process >&2; exit 1"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def client(
    monkeypatch: pytest.MonkeyPatch, runs: Path, how: str, dropped: int = 3
) -> ControlClient:
    program = runs.with_name(PROGRAM)
    program.write_text(SCRIPT.format(runs=runs, how=how, dropped=dropped))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(runs.parent), prepend=":")
    return ControlClient("/run/mps", 60)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("get_default_active_thread_percentage", "50.0"),
        ("get_default_device_pinned_mem_limit 0", "14G"),
        ("set_default_device_pinned_mem_limit 0 14336M", ""),
        ("get_server_list", ""),
    ],
)
@pytest.mark.parametrize("how", ["exit 0", "exit 1", REFUSED], ids=["empty", "failed", "refused"])
def test_a_command_that_was_dropped_is_repeated(
    monkeypatch: pytest.MonkeyPatch, runs: Path, how: str, line: str, answer: str
) -> None:
    assert asyncio.run(client(monkeypatch, runs, how).command(line)) == answer
    assert len(runs.read_text()) == 4


def test_an_answer_without_its_end_does_not_count(
    monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    control = client(monkeypatch, runs, "echo 3G; exit 0")
    assert asyncio.run(control.command("get_default_device_pinned_mem_limit 0")) == "14G"


@pytest.mark.parametrize(
    "how",
    ["echo Cannot find MPS control daemon process; exit 1", "exit 127", "kill -9 $$"],
    ids=["no daemon", "libraries", "killed"],
)
def test_a_failure_of_another_kind_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, runs: Path, how: str
) -> None:
    with pytest.raises(MpsUnavailable):
        asyncio.run(client(monkeypatch, runs, how).ping())
    assert len(runs.read_text()) == 1


def test_a_daemon_that_never_answers_is_down(monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    with pytest.raises(MpsUnavailable):
        asyncio.run(client(monkeypatch, runs, "exit 0", dropped=1000).ping())


def test_quit_is_sent_alone(monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    """A daemon that quits answers nothing more."""
    asyncio.run(client(monkeypatch, runs, "exit 0", dropped=1000).command("quit -t 5"))
    assert len(runs.read_text()) == 1
