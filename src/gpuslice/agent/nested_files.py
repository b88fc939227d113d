"""The files by which a node tells a node of a nested cluster its GPUs."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from gpuslice.agent.errors import AgentError
from gpuslice.files.atomic import replace_file


class AllotmentNotKept(AgentError):
    """The file that a nested node needs cannot be written: field, value and remedy."""

    def __init__(self, directory: Path, error: OSError) -> None:
        super().__init__(
            f"nested-dir: {str(directory)!r} is not valid: the lists of GPUs for nested nodes "
            f"cannot be kept there ({error.strerror}); mount a directory of the host there, "
            "writable, under the same path"
        )


def prepare_allotments(directory: Path) -> None:
    """Raises AllotmentNotKept unless files can be made there; leaves none."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise AllotmentNotKept(directory, error) from error


def keep_allotment(directory: Path, text: str) -> str:
    """Keeps the text in a file of the host and returns its path.

    The name follows from the content, so equal allotments share a file and none is ever changed
    under a container that has it mounted.
    """
    content = text.encode()
    path = directory / f"gpu-{hashlib.sha256(content).hexdigest()[:16]}.env"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise AllotmentNotKept(directory, error) from error
    return str(path)
