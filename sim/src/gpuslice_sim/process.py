"""Runs a program in the background: keeps its output, and ends it with its owner."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
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
        self._wait_until(lambda: len(re.findall(pattern, self.output())) >= times, pattern, timeout)
        return self.output()

    def _wait_until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            # First: what it writes before it exits counts.
            ended = self._process.poll() is not None
            if condition():
                return
            if ended or time.monotonic() > deadline:
                state = f"it exited with {self.returncode}" if ended else f"within {timeout:g} s"
                raise TimeoutError(f"{what!r} did not appear, {state}; output:\n{self.output()}")
            time.sleep(0.02)

    # Log lines of the form `TIME LEVEL Code: sentence key=value`

    def lines(self, code: str, detail: str = "") -> list[str]:
        """Complete log lines with this reason code whose rest matches the pattern."""
        found = re.finditer(rf"^\S+ [A-Z]+ +{re.escape(code)}: (.*)\n", self.output(), re.MULTILINE)
        return [line[0].rstrip("\n") for line in found if re.search(detail, line[1])]

    def logged(self, code: str, detail: str = "") -> int:
        """How many such lines there are."""
        return len(self.lines(code, detail))

    def wait_for_code(
        self, code: str, detail: str = "", *, times: int = 1, timeout: float = PATIENCE_SECONDS
    ) -> list[str]:
        """Returns such lines once there are that many."""
        what = f"{code}: {detail}"
        self._wait_until(lambda: self.logged(code, detail) >= times, what, timeout)
        return self.lines(code, detail)

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


def as_user(user: int | None, program: Path | str, *arguments: str) -> list[str]:
    """The command that runs a program as another user.

    A program of its own changes the user, in the same process. With its parameter `user`,
    subprocess forks instead of using vfork. Then handlers of gRPC run between fork and exec, which
    can crash a process that has threads.
    """
    argv = [str(program), *arguments]
    if user is None:
        return argv
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise FileNotFoundError("setpriv is not on PATH: install util-linux")
    return [setpriv, f"--reuid={user}", "--clear-groups", "--", *argv]
