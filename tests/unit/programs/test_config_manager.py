"""The link to the configuration, and the process that gets a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.programs.config_manager import send_signal, set_link


def test_a_link_that_is_right_is_left_alone(tmp_path: Path) -> None:
    link, target = tmp_path / "config.yaml", tmp_path / "a"
    set_link(link, target)
    first = link.lstat().st_ino
    set_link(link, target)
    assert link.lstat().st_ino == first
    assert link.readlink() == target


def test_what_a_killed_sidecar_left_is_in_nobodys_way(tmp_path: Path) -> None:
    link = tmp_path / "config.yaml"
    set_link(link, tmp_path / "a")
    (tmp_path / ".config.yaml.tmp").symlink_to("half")
    set_link(link, tmp_path / "b")
    assert link.readlink() == tmp_path / "b"
    assert list(tmp_path.iterdir()) == [link]


def test_a_place_for_the_link_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    with pytest.raises(ConfigError, match=r"config-file-dst: .*config/config\.yaml"):
        set_link(tmp_path / "config" / "config.yaml", None)


@pytest.fixture
def name() -> str:
    """Nobody else's: all processes of the machine are looked at."""
    return f"told-{uuid.uuid4()}"


@pytest.fixture
def program(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.symlink_to("/bin/sleep")
    return path


def is_told(
    argv: Sequence[str | Path], process: str | Path, *, executable: Path | str | None = None
) -> bool:
    """Whether a process with this command line is told of a change, if `process` is to be."""
    with subprocess.Popen(argv, executable=executable) as running:
        try:
            # A program that has just been started has no command line for a moment.
            while not Path(f"/proc/{running.pid}/cmdline").read_bytes():
                assert running.poll() is None
                time.sleep(0.01)
            told = send_signal(str(process), signal.SIGTERM)
            if told:
                assert running.wait(20) == -signal.SIGTERM
        finally:
            running.kill()
    return told


def test_a_process_is_told_by_the_first_word_of_its_command_line(program: Path, name: str) -> None:
    assert is_told([program, "60"], program)
    assert is_told([program, "60"], name)
    assert is_told([name, "60"], name, executable="/bin/sleep")


def test_a_path_finds_the_process_that_was_started_by_its_name(name: str) -> None:
    assert is_told([name, "60"], f"/usr/bin/{name}", executable="/bin/sleep")


def test_a_program_of_the_same_name_elsewhere_is_another(program: Path, name: str) -> None:
    assert not is_told([program, "60"], f"/usr/bin/{name}")


@pytest.mark.parametrize("options", [[], ["-u"]])
def test_a_script_is_told_by_its_own_name(tmp_path: Path, name: str, options: list[str]) -> None:
    script = tmp_path / name
    script.write_text("import time\ntime.sleep(60)\n")
    assert is_told([sys.executable, *options, script], name)
    assert is_told([sys.executable, *options, script], script)


def test_who_only_has_the_name_among_its_words_is_not_told(tmp_path: Path, name: str) -> None:
    script = tmp_path / name
    script.write_text("import time\ntime.sleep(60)\n")
    other = tmp_path / "editor.py"
    other.write_text(script.read_text())
    assert not is_told(["vim", script], name, executable=sys.executable)
    assert not is_told([sys.executable, other, name], name)


def test_a_name_that_is_empty_is_nobodys(program: Path) -> None:
    assert not is_told([program, "60"], "")
