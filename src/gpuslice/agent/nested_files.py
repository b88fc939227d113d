"""The files by which a node tells a node of a nested cluster its GPUs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gpuslice.agent.atomic_file import replace_file


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
