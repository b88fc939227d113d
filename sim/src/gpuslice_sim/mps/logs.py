"""The log files of daemon and servers."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Log:
    """Appends lines such as `[2026-01-31 12:00:00.123 Control  4711] text`."""

    path: Path
    role: str

    def write(self, text: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        line = f"[{stamp}.{int(now * 1000) % 1000:03} {self.role} {os.getpid():5}] {text}\n"
        append(self.path, line)


def control_log(directory: Path) -> Log:
    return Log(directory / "control.log", "Control")


def server_log(directory: Path) -> Log:
    return Log(directory / "server.log", "Other")


def append(path: Path, text: str) -> None:
    """Appends whole lines with one write. A log that cannot be written is not an error."""
    try:
        with path.open("ab", buffering=0) as file:
            file.write(text.encode())
    except OSError:
        return
