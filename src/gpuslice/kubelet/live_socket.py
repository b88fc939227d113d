"""Whether a process listens on a socket."""

from __future__ import annotations

import socket
from pathlib import Path

_SECONDS = 1.0


def is_served(path: Path) -> bool:
    """Blocks. The socket of a process that has ended refuses connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_SECONDS)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
