"""The files that list the GPUs of a nested node."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.files.atomic import replace_file
from gpuslice.files.lock import LockHeld
from gpuslice.files.untrusted import read_untrusted
from gpuslice.node.errors import ProgramError
from gpuslice.slicing.allocated_list import (
    LONGEST_BYTES,
    AllocatedDevicesError,
    parse_allocated_devices,
)


class NestedFileError(ProgramError):
    """The file cannot be written. The message states field, value and remedy."""

    def __init__(self, directory: Path, error: OSError) -> None:
        remedy = (
            "retry then"
            if isinstance(error, LockHeld)
            else "mount a directory of the host at the same path, writable"
        )
        super().__init__(
            Code.NESTED_FILE_NOT_WRITTEN,
            f"nested-dir: {str(directory)!r} is not valid: lists of GPUs for nested nodes cannot "
            f"be written there ({error.strerror}); {remedy}",
        )


def check_nested_directory(directory: Path) -> None:
    """Raises NestedFileError unless files can be created there. Leaves none behind."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise NestedFileError(directory, error) from error


def write_nested_file(directory: Path, text: str) -> str:
    """Writes the text to a file of the host and returns its path. Blocks.

    The name is derived from the content, so equal lists share a file, and a file never changes
    while a container has it mounted.
    """
    content = text.encode()
    path = directory / f"gpu-{hashlib.sha256(content).hexdigest()[:16]}.env"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not replace_file(path, content):
            _mark_as_needed(path, content)
    except OSError as error:
        raise NestedFileError(directory, error) from error
    return str(path)


def unused_nested_files(directory: Path, used_ids: str, keep_seconds: float) -> frozenset[Path]:
    """Files that no Allocate needed for this long, and none of whose GPUs is in use.

    `used_ids`: the device ids that containers hold, as one text. Ids contain the UUID of their GPU.
    """
    return frozenset(
        path
        for path in directory.glob("gpu-*.env")
        if _age(path) > keep_seconds and not any(uuid in used_ids for uuid in _listed(path))
    )


def remove_nested_files(paths: Iterable[Path], keep_seconds: float) -> list[Path]:
    """Returns those that it removed. An Allocate at the same time keeps its file."""
    removed = []
    for path in sorted(paths):
        aside = path.with_name(f".{path.name}.removed")
        with contextlib.suppress(OSError):
            path.rename(aside)
            if _age(aside) <= keep_seconds:  # needed since it was found to be unused
                aside.rename(path)
                continue
            aside.unlink()
            removed.append(path)
    return removed


def _mark_as_needed(path: Path, content: bytes) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:  # removed at this moment, because nothing used it
        replace_file(path, content)


def _age(path: Path) -> float:
    """In seconds, since an Allocate last needed it."""
    try:
        return time.time() - path.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _listed(path: Path) -> tuple[str, ...]:
    """The GPUs of a file. One that cannot be read counts as used by every GPU."""
    try:
        return parse_allocated_devices(read_untrusted(path, LONGEST_BYTES).decode())
    except (OSError, ValueError, AllocatedDevicesError):
        return ("",)
