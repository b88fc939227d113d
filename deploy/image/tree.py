"""Files of a container as plain values: contents, modes and links by path.

Owners and times are fixed: everything belongs to root and has the time 0, so that equal content
gives equal bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from .errors import ImageBuildError


@dataclass(frozen=True, slots=True)
class Directory:
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Link:
    target: str


Entry: TypeAlias = Directory | File | Link
# By path from the root, for example `usr/bin/python3`.
Tree: TypeAlias = Mapping[str, Entry]


def with_parents(tree: Tree) -> dict[str, Entry]:
    """The sorted tree with all parent directories. Raises ImageBuildError if it is not valid."""
    complete: dict[str, Entry] = {}
    for path, entry in tree.items():
        _check_path(path)
        complete[path] = entry
        for parent in parents(path):
            complete.setdefault(parent, tree.get(parent, Directory()))
            if not isinstance(complete[parent], Directory):
                raise ImageBuildError(f"{path} is below {parent}, which is not a directory")
    return dict(sorted(complete.items()))


def parents(path: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(path).parents][:-1]


def read_directory(directory: Path, at: str) -> dict[str, Entry]:
    """The content of a directory, at this path. Of the modes, only execution is kept."""
    return {f"{at}/{path.relative_to(directory)}": _entry(path) for path in _walk(directory)}


def write_directory(tree: Tree, directory: Path) -> None:
    """Writes the tree to the disk, with the current user as its owner."""
    for path, entry in with_parents(tree).items():
        place = directory / path
        match entry:
            case Directory():
                place.mkdir(parents=True, exist_ok=True)
            case File(content, mode):
                place.write_bytes(content)
                place.chmod(mode)
            case Link(target):
                place.symlink_to(target)


def _check_path(path: str) -> None:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ImageBuildError(
            f"path {path!r} is not valid: use the form 'usr/bin/name', without a leading slash, "
            "'.' or '..'"
        )


def _walk(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _entry(path: Path) -> Entry:
    if path.is_symlink():
        return Link(str(path.readlink()))
    if path.is_dir():
        return Directory()
    return File(path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
