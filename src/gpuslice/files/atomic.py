"""Replaces files and links atomically: readers see the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpuslice.files.lock import locked_directory


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Returns whether it was written. The directory must exist. Blocks. Raises OSError."""
    if is_current(path, content, mode):
        return False
    with draft_of(path) as draft:
        write_draft(draft, content, mode)
    return True


def write_draft(draft: Path, content: bytes, mode: int = 0o644) -> None:
    """Call it in `draft_of`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def replace_link(path: Path, target: Path) -> bool:
    """Returns whether it was written. The directory must exist, the target need not."""
    if path.is_symlink() and path.readlink() == target:
        return False
    with draft_of(path) as draft:
        draft.symlink_to(target)
    return True


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A path to write to, which is renamed to `path` if there is no error.

    It is always the same: a crash leaves at most one draft, and the next write removes it. Readers
    ignore it because of its dot and its suffix. During an upgrade, two processes may write at the
    same time, so the directory is locked.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with locked_directory(path.parent) as directory:
        draft.unlink(missing_ok=True)
        try:
            yield draft
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        os.fsync(directory)


def is_current(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """A file with another mode is replaced: other users read it."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777 == mode and path.read_bytes() == content
    return False
