"""Sockets that a killed agent left behind."""

from __future__ import annotations

import contextlib
import socket
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from gpuslice.files.lock import locked_directory

# The names that `config.settings.socket_name` gives.
_PATTERNS = ("nvidia-*.sock", "gpuslice-*.sock", "aliyungpushare.sock")
# Between bind and listen, a socket refuses connections although its process runs.
_AGAIN_SECONDS = 0.1
_CONNECT_SECONDS = 1.0


def remove_stale_sockets(directory: Path, except_names: Collection[str] = ()) -> list[str]:
    """Removes sockets with our names that refuse connections, and returns their names. Blocks.

    Raises OSError. Sockets that answer, or that time out, belong to a process that runs.
    """
    with locked_directory(directory):
        refusing = [
            path for path in _sockets(directory) if path.name not in except_names and _refuses(path)
        ]
        if not refusing:
            return []
        time.sleep(_AGAIN_SECONDS)
        stale = [path for path in refusing if _refuses(path)]
        for path in stale:
            path.unlink(missing_ok=True)
        return sorted(path.name for path in stale)


def _sockets(directory: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    yield path


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_SECONDS)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
