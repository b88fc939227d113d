"""Files of an image as plain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.image.errors import ImageBuildError
from deploy.image.tree import (
    Directory,
    Entry,
    File,
    Link,
    read_directory,
    with_parents,
    write_directory,
)


def test_directories_that_a_path_implies_are_there_before_it() -> None:
    tree = with_parents({"usr/bin/tool": File(b"x", 0o755), "etc/name": File(b"y")})
    assert list(tree) == ["etc", "etc/name", "usr", "usr/bin", "usr/bin/tool"]
    assert tree["usr"] == Directory(0o755)


def test_a_directory_keeps_the_mode_it_was_given() -> None:
    tree = with_parents({"tmp/inside": File(b""), "tmp": Directory(0o1777)})
    assert tree["tmp"] == Directory(0o1777)


@pytest.mark.parametrize("path", ["/etc/passwd", "usr//bin", "../up", "usr/./bin", "usr/", ""])
def test_a_path_that_is_not_from_the_root_is_refused(path: str) -> None:
    with pytest.raises(ImageBuildError, match=r"is not valid: use the form 'usr/bin/"):
        with_parents({path: File(b"")})


@pytest.mark.parametrize("parent", [Link("usr/bin"), File(b"")])
def test_nothing_lies_below_a_file_or_a_link(parent: File | Link) -> None:
    with pytest.raises(ImageBuildError, match="bin/tool is below bin, which is not a directory"):
        with_parents({"bin/tool": File(b""), "bin": parent})


def test_what_is_written_to_disk_is_read_back(tmp_path: Path) -> None:
    tree: dict[str, Entry] = {
        "lib": Directory(),
        "lib/empty": Directory(),
        "lib/module.py": File(b"pass\n"),
        "lib/tool": File(b"#!/bin/sh\n", 0o755),
        "lib/other": Link("/nowhere/at/all"),
        "lib/self": Link("../lib"),
    }
    write_directory(tree, tmp_path)
    assert {"lib": Directory(), **read_directory(tmp_path / "lib", "lib")} == tree


def test_of_modes_on_disk_only_what_runs_counts(tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(b"")
    (tmp_path / "private").chmod(0o600)
    (tmp_path / "shared").mkdir(mode=0o777)
    (tmp_path / "tool").write_bytes(b"")
    (tmp_path / "tool").chmod(0o700)
    assert read_directory(tmp_path, "at") == {
        "at/private": File(b"", 0o644),
        "at/shared": Directory(0o755),
        "at/tool": File(b"", 0o755),
    }
