"""Runs a program in the background: keeps its output, and ends it with its owner."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# A limit for failures only; a busy machine may need most of it.
PATIENCE_SECONDS = 90.0


class BackgroundProcess:
    """Runs from construction until `stop`, `kill` or the end of the `with` block."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        return self._process.wait(timeout)

    def stop(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Sends SIGTERM and returns the exit status."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def wait_for_output(
        self, pattern: str, *, times: int = 1, timeout: float = PATIENCE_SECONDS
    ) -> str:
        """Waits until the pattern has appeared that often, and returns the output."""
        deadline = time.monotonic() + timeout
        while True:
            output = self.output()
            if len(re.findall(pattern, output)) >= times:
                return output
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                state = f"it exited with {self.returncode}" if ended else f"within {timeout:g} s"
                raise TimeoutError(f"{pattern!r} did not appear, {state}; output:\n{output}")
            time.sleep(0.02)

    # To detect leaks

    def descriptors(self) -> list[str]:
        found = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except FileNotFoundError:  # closed in the meantime
                continue
        return sorted(found)

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(match[1]) * 1024 if match else 0
