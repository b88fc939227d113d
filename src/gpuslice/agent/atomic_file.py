"""Files of the agent, in directories that it makes."""

from __future__ import annotations

from pathlib import Path

from gpuslice import atomic_file


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Whether it had to be written. The directory is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return atomic_file.replace_file(path, content, mode)


def replace_link(path: Path, target: Path) -> bool:
    """Whether it had to be written. The directory is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return atomic_file.replace_link(path, target)
