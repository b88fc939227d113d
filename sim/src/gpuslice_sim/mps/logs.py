"""The log files of daemon and servers."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Log:
    """Appends lines such as `[2026-01-31 12:00:00.123 Control  4711] text`."""

    # None: standard output.
    path: Path | None
    role: str

    def write(self, text: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        line = f"[{stamp}.{int(now * 1000) % 1000:03} {self.role} {os.getpid():5}] {text}\n"
        if self.path is not None:
            append(self.path, line)
            return
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), line.encode())


def control_log(directory: Path | None) -> Log:
    """`directory`: None for a daemon in the foreground."""
    return Log(directory and directory / "control.log", "Control")


def server_log(directory: Path | None) -> Log:
    return Log(directory and directory / "server.log", "Other")


def append(path: Path, text: str) -> None:
    """Appends whole lines with one write. A log that cannot be written is not an error."""
    try:
        with path.open("ab", buffering=0) as file:
            file.write(text.encode())
    except OSError:
        return
