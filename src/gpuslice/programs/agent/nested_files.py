"""The files that list the GPUs of a nested node."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.files.atomic import replace_file
from gpuslice.files.lock import LockHeld
from gpuslice.node.errors import ProgramError


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
    """Writes the text to a file of the host and returns its path.

    The name is derived from the content, so equal lists share a file, and a file never changes
    while a container has it mounted.
    """
    content = text.encode()
    path = directory / f"gpu-{hashlib.sha256(content).hexdigest()[:16]}.env"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise NestedFileError(directory, error) from error
    return str(path)
