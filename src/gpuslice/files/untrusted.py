"""Files in directories that containers can write to: nothing there is trusted."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotRegularFile(OSError):
    """A link, a directory, a named pipe, a socket or a device is in place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "this is not a regular file", str(path))


class FileTooLarge(OSError):
    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"the file has more than {max_bytes} bytes", str(path))


def read_untrusted(path: Path, max_bytes: int, *, follow_links: bool = False) -> bytes:
    """Reads a small regular file. Never blocks on a named pipe, never opens a device.

    Raises OSError. The file is opened in two steps: the first one only refers to it, so that its
    type is known before anything is opened for reading.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    reference = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(reference).st_mode):
            raise NotRegularFile(path)
        # Through the reference: another file may have this name by now.
        with Path(f"/proc/self/fd/{reference}").open("rb", buffering=0) as file:
            content = _read(file.read, max_bytes + 1)
    finally:
        os.close(reference)
    if len(content) > max_bytes:
        raise FileTooLarge(path, max_bytes)
    return content


def remove_impostors(directory: Path, expected: Mapping[str, Callable[[int], bool]]) -> list[str]:
    """Removes entries of these names that are of another type than expected.

    `expected` has a function of the module `stat` for each name. Returns the names that were
    removed. Raises OSError if one cannot be removed.
    """
    removed = []
    for name, is_expected in expected.items():
        path = directory / name
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if is_expected(mode):
            continue
        if stat.S_ISDIR(mode):
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
        removed.append(name)
    return removed


def remove_tree(path: Path, seconds: float = 10.0) -> None:
    """Removes a directory that containers may write to at the same time. Raises OSError.

    It follows no links, and a deep tree costs neither stack nor descriptors: directories are moved
    up until they are empty.
    """
    deadline = time.monotonic() + seconds
    numbers = itertools.count()
    top = os.open(path, _DIRECTORY)
    try:
        while names := os.listdir(top):  # noqa: PTH208 - of a descriptor
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"not empty after {seconds:g} s", str(path))
            for name in names:
                _remove_entry(top, name, numbers)
    finally:
        os.close(top)
    path.rmdir()


def _remove_entry(top: int, name: str, numbers: Iterator[int]) -> None:
    try:
        os.unlink(name, dir_fd=top)
        return
    except IsADirectoryError:
        directory = os.open(name, _DIRECTORY, dir_fd=top)
    except FileNotFoundError:
        return
    try:
        for inner in os.listdir(directory):  # noqa: PTH208
            try:
                os.unlink(inner, dir_fd=directory)
            except IsADirectoryError:
                moved = f".{os.urandom(4).hex()}-{next(numbers)}"
                os.rename(inner, moved, src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    with contextlib.suppress(OSError):  # something was added; the next round removes it
        os.rmdir(name, dir_fd=top)


def _read(read: Callable[[int], bytes | None], count: int) -> bytes:
    """A single read may return less."""
    content = b""
    while len(content) < count:
        more = read(count - len(content))
        if not more:
            break
        content += more
    return content
