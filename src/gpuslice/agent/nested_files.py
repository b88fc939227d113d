"""The files by which a node tells a node of a nested cluster its GPUs, from both sides."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from gpuslice.agent.atomic_file import replace_file
from gpuslice.agent.errors import AgentError
from gpuslice.slicing.allotment import LONGEST_BYTES, VARIABLE, AllotmentError, parse_allotment


class AllotmentUnreadable(AgentError):
    """Names the field, its value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {str(value)!r} is not valid: {remedy}")


class AllotmentNotKept(OSError):
    """The file that a nested node needs could not be written."""


def keep_allotment(directory: Path, text: str) -> str:
    """Keeps the text in a file of the host and returns its path.

    The name follows from the content, so equal allotments share a file and none is ever changed
    under a container that has it mounted.
    """
    content = text.encode()
    path = directory / f"gpu-{hashlib.sha256(content).hexdigest()[:16]}.env"
    try:
        replace_file(path, content)
    except OSError as error:
        raise AllotmentNotKept(
            error.errno,
            f"the list of GPUs for a nested node cannot be written ({error.strerror}): "
            "make the nested directory writable for the agent",
            str(path),
        ) from error
    return str(path)


def read_allotment(path: Path | None, variable: str | None) -> tuple[str, ...]:
    """From the file, if there is a path, and else from the value of the variable."""
    if path is not None:
        return _parsed(_read(path), "nested-env", path)
    if variable is not None:
        return _parsed(variable, "environment", VARIABLE)
    raise AllotmentUnreadable(
        "nested-env", "", f"give the file that the node around mounted, or set {VARIABLE}"
    )


def _parsed(text: str, field: str, value: object) -> tuple[str, ...]:
    try:
        return parse_allotment(text)
    except AllotmentError as error:
        raise AllotmentUnreadable(field, value, str(error)) from error


def _read(path: Path) -> str:
    try:
        content = _read_regular_file(path)
    except OSError as error:
        raise AllotmentUnreadable(
            "nested-env",
            path,
            f"the file cannot be read ({error.strerror}); mount it from the node around, "
            "or leave the setting out where this is no nested node",
        ) from error
    if content is None:
        raise AllotmentUnreadable(
            "nested-env", path, "this is no regular file; give the file that lists the GPUs"
        )
    if len(content) > LONGEST_BYTES:
        raise AllotmentUnreadable(
            "nested-env",
            path,
            f"the file has more than {LONGEST_BYTES} bytes; give the file that lists the GPUs",
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise AllotmentUnreadable(
            "nested-env", path, f"the file is not UTF-8 at byte {error.start}; write it as text"
        ) from error


def _read_regular_file(path: Path) -> bytes | None:
    """None if it is something else. Opened without waiting: a pipe would never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(LONGEST_BYTES + 1)
    finally:
        os.close(descriptor)
