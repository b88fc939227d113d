"""Which program a daemon runs as its server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NAME = "nvidia-cuda-mps-server"
# Its program on a simulated node. Daemons search it, and then run their own server in its place.
PLACEHOLDER = "#!/bin/sh\necho The MPS control daemon runs this program. >&2\nexit 1\n"
# Of execlp(3), without PATH.
_DEFAULT_PATH = "/bin:/usr/bin"
# Of the simulated node: its programs are in the directory bin.
_SYSTEM = ("/bin", "/usr/bin")


def server_program(node: Path, search_path: str | None) -> Path | None:
    """What PATH leads to; None if it is nowhere."""
    path = _DEFAULT_PATH if search_path is None else search_path
    for directory in path.split(os.pathsep):
        places = [directory, str(node / "bin")] if directory in _SYSTEM else [directory]
        if found := shutil.which(NAME, path=os.pathsep.join(places)):
            return Path(found)
    return None


def is_simulated(program: Path) -> bool:
    """Whether it stands for the server that the daemon forks. Others are executed.

    By its content: the container runtime mounts a copy of it.
    """
    with program.open("rb") as file:
        return file.read(len(PLACEHOLDER) + 1) == PLACEHOLDER.encode()
