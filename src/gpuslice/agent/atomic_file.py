"""Files that others read at any moment: they see the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Whether it had to be written. The directory is made if need be."""
    if _is_current(path, content, mode):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name, so that a crash leaves at most one behind and the next write takes it.
    # No reader takes it for a finished file: the suffix is not theirs.
    draft = path.with_name(f".{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with _locked(path.parent) as directory:
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        os.fsync(directory)
    return True


def _is_current(path: Path, content: bytes, mode: int) -> bool:
    """A file of another mode is as good as missing: its readers are other users."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777 == mode and path.read_bytes() == content
    return False


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """During an upgrade two agents may write at once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
