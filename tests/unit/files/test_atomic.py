"""Files and links are replaced atomically."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.files.atomic import replace_file, replace_link


def write_file(path: Path, text: str) -> bool:
    return replace_file(path, text.encode())


def write_link(path: Path, text: str) -> bool:
    return replace_link(path, Path(text))


def text_of(path: Path) -> str:
    return str(path.readlink()) if path.is_symlink() else path.read_text()


both = pytest.mark.parametrize("write", [write_file, write_link])
Write = Callable[[Path, str], bool]


@both
def test_it_is_written_only_if_it_differs(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "it"
    assert write(path, "old")
    first = path.lstat().st_ino
    assert not write(path, "old")
    assert path.lstat().st_ino == first
    assert write(path, "new")
    assert text_of(path) == "new"
    assert list(tmp_path.iterdir()) == [path]


@both
@pytest.mark.parametrize("kind", ["file", "link"])
def test_the_draft_of_a_killed_writer_is_replaced(tmp_path: Path, write: Write, kind: str) -> None:
    path, other = tmp_path / "it", tmp_path / "other"
    other.write_text("somebody else's")
    draft = tmp_path / ".it.tmp"
    if kind == "file":
        draft.write_text("half")
    else:
        draft.symlink_to(other)
    assert write(path, "new")
    assert text_of(path) == "new"
    assert other.read_text() == "somebody else's"
    assert sorted(tmp_path.iterdir()) == [path, other]


@both
def test_a_failed_write_leaves_no_draft(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "it"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write(path, "new")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "it", "new")


@both
def test_another_kind_of_entry_is_replaced(tmp_path: Path, write: Write) -> None:
    path, other = tmp_path / "it", tmp_path / "other"
    other.write_text("somebody else's")
    if write is write_link:
        path.write_text("new")
    else:
        path.symlink_to(other)
    assert write(path, "new")
    assert path.is_symlink() == (write is write_link)
    assert other.read_text() == "somebody else's"


def test_a_file_of_another_mode_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "it"
    assert replace_file(path, b"same")
    path.chmod(0o600)
    assert replace_file(path, b"same")
    assert path.stat().st_mode & 0o777 == 0o644
