"""Files and links that others read at any moment: they see the old one or the new, never a part."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Whether it had to be written. The directory has to be there."""
    if _is_current(path, content, mode):
        return False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with _draft_of(path) as draft, os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    return True


def replace_link(path: Path, target: Path) -> bool:
    """Whether it had to be written. The directory has to be there; the target need not."""
    if path.is_symlink() and path.readlink() == target:
        return False
    with _draft_of(path) as draft:
        draft.symlink_to(target)
    return True


@contextlib.contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """A name to write to, which takes the place of the path when all went well.

    It is always the same, so that a crash leaves at most one behind and the next write removes it.
    No reader takes it for a finished file: the dot and the suffix are not theirs.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with _locked(path.parent) as directory:
        draft.unlink(missing_ok=True)
        try:
            yield draft
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        os.fsync(directory)


def _is_current(path: Path, content: bytes, mode: int) -> bool:
    """A file of another mode is as good as missing: its readers are other users."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777 == mode and path.read_bytes() == content
    return False


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """During an upgrade two processes may write at once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
