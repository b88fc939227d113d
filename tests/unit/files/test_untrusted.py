"""Files that containers can write are read and removed without harm."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.files.untrusted import (
    FileTooLarge,
    NotRegularFile,
    read_untrusted,
    remove_impostors,
    remove_tree,
)

LIMIT = 100


def test_a_small_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_bytes(b"1" * LIMIT)
    assert read_untrusted(path, LIMIT) == b"1" * LIMIT


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # more than the memory of any node
    with pytest.raises(FileTooLarge):
        read_untrusted(path, LIMIT)


IMPOSTORS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_anything_else_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pid"
    IMPOSTORS[kind](path)
    with pytest.raises(NotRegularFile):
        read_untrusted(path, LIMIT)


def test_a_path_that_the_operator_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert read_untrusted(tmp_path / "link", LIMIT, follow_links=True) == b"x"
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(NotRegularFile):
        read_untrusted(tmp_path / "zero", LIMIT, follow_links=True)


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_what_is_in_place_of_a_file_is_removed_and_nothing_else(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_text("stays")
    IMPOSTORS[kind](tmp_path / "pid")
    expected = {"pid": stat.S_ISREG, "other": stat.S_ISREG, "missing": stat.S_ISSOCK}
    assert remove_impostors(tmp_path, expected) == ["pid"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "link").symlink_to(outside)
    (tree / "link").symlink_to(outside)
    remove_tree(tree)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").exists()


def test_a_tree_that_is_too_deep_for_a_path_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    descriptor = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 50, dir_fd=descriptor)
        inner = os.open("d" * 50, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    remove_tree(tree)
    assert not tree.exists()
