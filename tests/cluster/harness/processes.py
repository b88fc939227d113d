"""Programs that belong to the harness: logged, stopped by pid, gone when the harness is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# The kernel kills the program when the thread that started it ends, so `start` is for main threads.
_DIES_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")

_PATIENCE_SECONDS = 90.0


class ProcessError(Exception):
    """A program ended that should run, or does not end that should."""


class Process:
    """A program that can be stopped, killed and started again. All its output is in one log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        log: Path,
        namespace: Callable[[], int] | None = None,
    ) -> None:
        """`namespace` tells the process in whose mount and pid namespace the program shall run."""
        self.name = name
        self.argv = [str(part) for part in argv]
        self.env = dict(env)
        self.log = log
        self._namespace = namespace
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """As this machine counts it, whatever namespace the program is in."""
        if self._process is None:
            raise ProcessError(f"{self.name} has not been started")
        if self._namespace is None:
            return self._process.pid
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and self.running:
            for child in _children(self._process.pid):
                return child
            time.sleep(0.005)
        raise ProcessError(f"{self.name} is not running; {self.log} ends:\n{self.tail()}")

    def start(self) -> None:
        if self.running:
            return
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._prefix(), *self.argv],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the harness, which stops things in order
            )

    def stop(self, timeout: float = _PATIENCE_SECONDS) -> None:
        """Asks it to end; harmless if it has ended."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """As a crash."""
        self._end(signal.SIGKILL, _PATIENCE_SECONDS)

    def restart(self) -> None:
        self.stop()
        self.start()

    def tail(self, lines: int = 20) -> str:
        if not self.log.exists():
            return "(no output)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def require(self) -> None:
        """Raises unless it runs."""
        if not self.running:
            status = None if self._process is None else self._process.returncode
            raise ProcessError(
                f"{self.name} ended with status {status}; {self.log} ends:\n{self.tail()}"
            )

    def _prefix(self) -> list[str]:
        if self._namespace is None:
            return list(_DIES_WITH_ITS_PARENT)
        enter = ["nsenter", "--target", str(self._namespace()), "--mount", "--pid", "--"]
        return [*_DIES_WITH_ITS_PARENT, *enter, *_DIES_WITH_ITS_PARENT]

    def _end(self, number: signal.Signals, timeout: float) -> None:
        if self._process is None or not self.running:
            return
        with contextlib.suppress(ProcessError):  # it ended meanwhile
            _send(self.pid, number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ProcessError(
                f"{self.name} did not end within {timeout:g} s; its log ends:\n{self.tail()}"
            ) from None


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise ProcessError(f"process {pid} is gone") from None


def _children(parent: int) -> list[int]:
    """Not every kernel has /proc/<pid>/task/<tid>/children."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] not in "ZX":
            found.append(int(status.parent.name))
    return found
