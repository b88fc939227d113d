"""A directory that is the root of a file system, for example that of a driver container."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Tree:
    """All paths are those of a process that has this root."""

    root: Path

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def matching(self, pattern: str) -> list[str]:
        """Existing paths, sorted. Only the last component may contain wildcards."""
        directory, name = PurePosixPath(pattern).parent, PurePosixPath(pattern).name
        if not any(c in name for c in "*?["):
            return [pattern] if os.path.lexists(self.at(pattern)) else []
        try:
            names = sorted(path.name for path in self.at(str(directory)).iterdir())
        except OSError:
            return []
        return [f"{directory}/{found}" for found in names if fnmatchcase(found, name)]

    def resolved(self, paths: Iterable[str]) -> list[str]:
        """The files that the paths refer to, each once, with links followed."""
        real = dict.fromkeys(self.resolve(path) for path in paths)
        return [path for path in real if path is not None and not self.at(path).is_dir()]

    def resolve(self, path: str) -> str | None:
        """Follows links, which never leave the root. None if the target does not exist."""
        done: list[str] = []
        todo = _parts(path)[::-1]
        followed = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = done[:-1]
                continue
            target = self.link_target("/".join([*done, part]))
            if target is None:
                done.append(part)
                continue
            followed += 1
            if followed > _MAX_LINKS:
                return None
            if target.startswith("/"):
                done = []
            todo += _parts(target)[::-1]
        real = "/" + "/".join(done)
        return real if self.at(real).exists() else None

    def link_target(self, path: str) -> str | None:
        try:
            return os.fspath(self.at(path).readlink())
        except OSError:
            return None

    def is_link(self, path: str) -> bool:
        return self.at(path).is_symlink()

    def is_directory(self, path: str) -> bool:
        real = self.resolve(path)
        return real is not None and self.at(real).is_dir()

    def is_file(self, path: str) -> bool:
        """Anything but a directory, for example a socket."""
        real = self.resolve(path)
        return real is not None and not self.at(real).is_dir()

    def is_program(self, path: str) -> bool:
        real = self.resolve(path)
        if real is None:
            return False
        mode = self.at(real).stat().st_mode
        return stat.S_ISREG(mode) and bool(mode & 0o111)

    def first(self, directories: Iterable[str], name: str) -> list[str]:
        """One path, in the first directory that has a file with this name, or none."""
        paths = (f"{directory}/{name}" for directory in directories)
        return next(([path] for path in paths if self.is_file(path)), [])


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
