"""Finds the driver's libraries below a driver root."""

from __future__ import annotations

from pathlib import Path

NVML = "libnvidia-ml.so.1"

_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_MOST_LINKS = 40


def find_nvml(root: Path) -> Path | None:
    """The file of the NVML library; None if the loader should look for it by name."""
    return find_library(root, NVML)


def find_library(root: Path, name: str) -> Path | None:
    """None if it is not there, or if the root is our own and the loader finds it by name."""
    if root == Path("/"):
        return None  # the loader knows the directories of its own root better
    for directory in _DIRECTORIES:
        found = resolve_within(root, Path(directory) / name)
        if found is not None and found.is_file():
            return found
    return None


def resolve_within(root: Path, path: Path) -> Path | None:
    """Follows links as a program would whose root directory is `root`; None for a loop.

    Distributions link libraries by absolute paths, which would lead out of the driver's root.
    """
    todo = [part for part in reversed(path.parts) if part != "/"]
    here: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            here = here[:-1]
            continue
        current = root.joinpath(*here, part)
        if not current.is_symlink():
            here.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        target = current.readlink()
        if target.is_absolute():
            here = []
        todo.extend(p for p in reversed(target.parts) if p != "/")
    return root.joinpath(*here)
